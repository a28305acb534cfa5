"""From stored rows back to a run in memory, and the check that both always agree."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from tallystick.core.commands import Command
from tallystick.core.definition import Bindings, Definition, Limits
from tallystick.core.evolution import replay
from tallystick.core.graph import Plan
from tallystick.core.identity import SEMANTICS, Authority
from tallystick.core.layered import Layered, Overlay
from tallystick.core.machine import decide
from tallystick.core.messages import Payload
from tallystick.core.run import Run
from tallystick.errors import MaintenanceRequired, NotReady, TallyError
from tallystick.store.protocol import Store, StoredRun

PLANS_MAX: Final = 64
"""Compiled definitions that are kept; the one not used for longest is let go."""

SEED_BYTES: Final = 64
"""Enough for a decision that nobody keeps."""

_definition = msgspec.json.Decoder(Definition).decode
_bindings = msgspec.json.Decoder(Bindings).decode
_limits = msgspec.json.Decoder(Limits).decode


class Plans:
    """Compiled definitions by digest, read from the store when they are needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[bytes, Plan] = OrderedDict()

    def keep(self, plan: Plan) -> None:
        """Remember a plan that was just compiled."""
        self._known[plan.digest] = plan
        self._known.move_to_end(plan.digest)
        while len(self._known) > PLANS_MAX:
            self._known.popitem(last=False)

    def known(self, digest: bytes) -> Plan | None:
        """The plan of this digest, if it is in memory."""
        plan = self._known.get(digest)
        if plan is not None:
            self._known.move_to_end(digest)
        return plan

    async def of(self, digest: bytes) -> Plan:
        """The plan of this digest. Raises `MaintenanceRequired` if what is stored has another."""
        plan = self.known(digest)
        if plan is None:
            body = await self._store.definition(digest)
            plan = _compiled(digest, body)
            self.keep(plan)
        return plan


async def load(store: Store, plans: Plans, run: str) -> tuple[StoredRun, Run]:
    """Read a run's row and replay its history, checking every hash on the way.

    Raises `NotFound`; `NotReady` for a run of another semantics number; `MaintenanceRequired` where
    row and history contradict each other or were changed.
    """
    stored = await store.run(run)
    if stored.damaged is not None:
        raise _damaged(run, stored.damaged)
    if stored.new.semantics != SEMANTICS:
        raise NotReady(
            f"run {run} was started under other rules (semantics {stored.new.semantics})",
            code="foreign-semantics",
            check="semantics",
            facts={"run": run, "semantics": stored.new.semantics, "ours": SEMANTICS},
            next_step="use a version of tallystick that knows these rules",
        )
    plan = await plans.of(stored.new.definition)
    rows: list[tuple[int, int, bytes, bytes, Payload | None]] = [
        (event.sequence, event.transition, event.envelope, event.hash, event.payload)
        async for event in store.events(run)
    ]
    fresh = Run.new(run, plan.bind(_bindings(stored.new.bindings)), _limits(stored.new.limits))
    copy = replay(fresh, rows)
    if (copy.sequence, copy.head) != (stored.header.sequence, stored.header.head):
        raise _damaged(run, f"the row says event {stored.header.sequence}, history {copy.sequence}")
    copy.authority = authority_of(stored)
    return stored, copy


async def refusal(store: Store, run: str, command: Command) -> TallyError | None:
    """What the rules would say to a command, decided against the run as stored and thrown away.

    So that a request which is refused anyway need not take the run first. Writes nothing. For
    commands that do not ask for the time: it is that of the run's last event.
    """
    _, copy = await load(store, Plans(store), run)
    return decide(copy, [command], now=copy.last_at, seed=bytes(SEED_BYTES)).verdicts[0]


def authority_of(stored: StoredRun) -> Authority | None:
    """Who may write the run, as stored; None: nobody, it is unclaimed or was released."""
    if not stored.token or stored.engine is None:
        return None
    return Authority(stored.generation, stored.token, stored.engine)


def differences(mine: Run, fresh: Run) -> list[str]:
    """The names of what differs between a copy in memory and a fresh load."""
    return [name for name in Run.__struct_fields__ if not _same(name, mine, fresh)]


def _same(name: str, mine: Run, fresh: Run) -> bool:
    ours, theirs = getattr(mine, name), getattr(fresh, name)
    if isinstance(ours, Layered | Overlay):
        return dict(ours.items()) == dict(theirs.items()) and len(ours) == len(theirs)
    if name == "bound":
        return bool(ours.body == theirs.body and ours.plan.digest == theirs.plan.digest)
    return bool(ours == theirs)


def _compiled(digest: bytes, body: bytes) -> Plan:
    try:
        plan = Plan(_definition(body))
    except msgspec.MsgspecError as error:
        raise MaintenanceRequired(
            f"the stored definition {digest.hex()} cannot be read",
            code="definition-unreadable",
            facts={"definition": digest.hex(), "why": str(error)},
        ) from error
    if plan.digest != digest:
        raise MaintenanceRequired(
            f"the stored definition {digest.hex()} was changed",
            code="definition-changed",
            facts={"definition": digest.hex(), "seen": plan.digest.hex()},
        )
    return plan


def _damaged(run: str, why: str) -> MaintenanceRequired:
    return MaintenanceRequired(
        f"run {run} is damaged: {why}",
        code="run-damaged",
        facts={"run": run, "why": why},
        next_step="restore a backup, or keep the file for an investigation; do not write to it",
    )
