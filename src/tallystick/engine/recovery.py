"""Runs whose engine is gone: who may take them, and what becomes of what was under way.

    unfinished runs ─▶ evidence about their engine ─▶ hand-off ─▶ barrier ─▶ reports ─▶ on

A run is taken only when something is to be done for it, and only on evidence: what the kernel says
about the lock file of the very instance that owned it. What was under way inside a dead engine
ended *unknown*; the effect class decides what follows, in `core/recovery`. Nothing is handed over
from here.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from tallystick.core.commands import Claim, HandOff, Report, Unknown
from tallystick.core.identity import SEMANTICS, Authority
from tallystick.engine.clock import Entropy
from tallystick.engine.driver import Place
from tallystick.engine.held import Held, Letter
from tallystick.engine.loading import authority_of
from tallystick.engine.locks import Evidence, Machine, evidence
from tallystick.errors import OwnerElsewhere
from tallystick.store.protocol import EngineRow, ListedRun, Store, StoredRun

PAGE: Final = 256
RECONCILE_PAGE: Final = 32
TOKEN_BYTES: Final = 16

_log: Final = logging.getLogger("tallystick.engine")


class Recovery:
    """Decides what this instance may take, and writes the letters with which it does."""

    def __init__(self, store: Store, entropy: Entropy, here: Machine, instance: str) -> None:
        self._store = store
        self._entropy = entropy
        self._here = here
        self._instance = instance
        self._engines: dict[str, EngineRow | None] = {}
        self.stranded: dict[str, Evidence] = {}
        self.candidates: deque[str] = deque()

    async def survey(
        self, due: Callable[[str, int], None], restless: Callable[[str], None]
    ) -> None:
        """Look through the unfinished runs, page by page, and note what is to be done for which.

        due       is told of runs that wait for a time
        restless  is told of runs that will move without anybody's help
        """
        after = 0
        while page := await self._store.unfinished(after=after, limit=PAGE):
            for listed in page:
                await self._note(listed, due, restless)
            after = page[-1].number

    async def letter(self, stored: StoredRun) -> Letter | None:
        """The letter that makes this run ours; None: it is ours, or over and nobody's matter.

        Raises `OwnerElsewhere` where there is no evidence that its owner is gone.
        """
        owner = authority_of(stored)
        if stored.header.ended_at is not None or (owner and owner.engine == self._instance):
            return None
        authority = Authority(
            stored.generation + 1, self._entropy.draw(TOKEN_BYTES), self._instance
        )
        if owner is None:
            return Letter(Claim(authority))
        proof = await self._evidence(owner.engine)
        if proof.kind != "ended":
            raise _elsewhere(stored.new.run, owner, proof)
        return Letter(HandOff(authority, owner.engine, proof.kind, proof.seen))

    def undecided(self, held: Held, here: Callable[[Place], bool]) -> list[Letter]:
        """Reports for what was under way and can report no more, at most one page.

        here  says of (run, activation, attempt, dispatch) whether it runs in this process
        """
        assert held.run is not None, "only a loaded run is reconciled"
        told = {_named(letter) for letter in held.mail}
        letters = []
        for activation, attempt in held.run.open_dispatches():
            key, number, dispatch = activation.key, attempt.number, attempt.dispatch
            if here((held.id, key, number, dispatch)) or (key, number, dispatch) in told:
                continue
            end = Unknown("its engine ended while it was under way")
            letters.append(Letter(Report(key, number, dispatch, end)))
            if len(letters) == RECONCILE_PAGE:
                break
        return letters

    async def _note(
        self,
        listed: ListedRun,
        due: Callable[[str, int], None],
        restless: Callable[[str], None],
    ) -> None:
        stored, header = listed.stored, listed.stored.header
        run = stored.new.run
        if stored.damaged is not None or stored.new.semantics != SEMANTICS:
            _log.warning("run %s is left alone: damaged, or of other rules", run)
            return
        owner = authority_of(stored)
        if owner is not None:
            proof = await self._evidence(owner.engine)
            if proof.kind != "ended":
                self._strand(owner.engine, proof)
                return
        if not waits_for_a_person(stored):
            restless(run)
        # In doubt is not active; what is between its dispatches is, and has a time.
        if header.barrier or header.ready or header.active:
            self.candidates.append(run)
        elif header.due_at is not None:
            due(run, header.due_at)

    async def _evidence(self, instance: str) -> Evidence:
        """What is known of an instance now. Its row is remembered, its lock is asked every time."""
        if instance not in self._engines:
            self._engines[instance] = await self._store.engine(instance)
        return evidence(self._engines[instance], self._here)

    def _strand(self, instance: str, proof: Evidence) -> None:
        if instance not in self.stranded:
            self.stranded[instance] = proof
            _log.warning("runs of engine %s are left alone: %s", instance, proof.seen)


def waits_for_a_person(stored: StoredRun) -> bool:
    """As far as a row tells: nothing of this run moves before somebody acts."""
    header = stored.header
    only_deadline = header.due_at is None or header.due_at == stored.new.deadline
    if header.status == "in_doubt":
        return only_deadline
    return header.status == "waiting" and header.reason == "capacity" and only_deadline


def _named(letter: Letter) -> tuple[object, int, int] | None:
    match letter.command:
        case Report(key, attempt, dispatch):
            return key, attempt, dispatch
        case _:
            return None


def _elsewhere(run: str, owner: Authority, proof: Evidence) -> OwnerElsewhere:
    return OwnerElsewhere(
        f"run {run} belongs to engine {owner.engine}, and {proof.seen}",
        check="evidence",
        facts={
            "run": run,
            "engine": owner.engine,
            "generation": owner.generation,
            "evidence": proof.kind,
            "seen": proof.seen,
        },
        next_step="wait for that engine to end; if it is gone for good, only a person can say so",
    )
