"""From a request to a run: checked, bound to its tasks for ever, recognised when it comes again.

    definition ─▶ prepare ─▶ Prepared: plan, bindings, input schema     once per definition, root
    Prepared + input ─▶ start ─▶ known key? the same run · else a birth in the next batch

A start that was acknowledged is on disk with its first attempts prepared. A thousand starts at once
share their batches; of fifty with one key, one is written and the others get the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tallystick.core.commands import Admission
from tallystick.core.definition import Binding, Bindings, Description, Limits, Node, Retry
from tallystick.core.graph import Plan, retry_problem
from tallystick.core.identity import Authority
from tallystick.core.machine import request_digest
from tallystick.core.values import ValueRefused, decode_trusted, encode
from tallystick.engine.held import Birth
from tallystick.engine.scene import Scene
from tallystick.errors import Conflict, InvalidRequest
from tallystick.executors.function.resolve import ResolvedTask
from tallystick.store.protocol import KeyTaken, StoredRun

if TYPE_CHECKING:
    from tallystick.core.schemas import Validator

KEY_BYTES_MAX: Final = 512
INPUT_BYTES_MAX: Final = 1024 * 1024
RUN_PREFIX: Final = "r"
TOKEN_BYTES: Final = 16

Resolve = Callable[[str, Path | None], ResolvedTask]

_decode_limits = msgspec.json.Decoder(Limits).decode


class Prepared(msgspec.Struct, frozen=True):
    """A definition that can be started: compiled, its tasks found and bound."""

    plan: Plan
    bindings: Bindings
    description: Description
    check: Validator | None


class Admitted(msgspec.Struct, frozen=True):
    """A run that exists. created False: it existed before, under the same key."""

    run: str
    created: bool


class Desk:
    """Admits runs. `check` raises if none are taken now; `born` gets what goes into the next batch.

    authority  makes the authority of a new run; None as its answer: runs are born unclaimed
    """

    def __init__(
        self,
        scene: Scene,
        *,
        resolve: Resolve,
        authority: Callable[[], Authority | None],
        check: Callable[[], None],
        born: Callable[[Birth], None],
    ) -> None:
        self._store = scene.store
        self._clock = scene.clock
        self._entropy = scene.entropy
        self._fault = scene.fault
        self._resolve = resolve
        self._check = check
        self._authority = authority
        self._born = born
        self._stored: set[bytes] = set()
        self._keys: dict[str, asyncio.Future[None]] = {}

    def prepare(
        self, plan: Plan, *, root: Path | None, description: Description | None = None
    ) -> Prepared:
        """Find and bind every task of a definition. Imports code; writes nothing.

        root  folder that tasks are imported from; None: the process's own path.
        Raises `InvalidRequest` naming the step: a task that cannot be found, or a retry policy that
        the effect does not allow.
        """
        steps = {
            path: self._bind(path, node.node, root)
            for path, node in plan.nodes.items()
            if node.leaf
        }
        folder = None if root is None else str(root.resolve())
        check = _input_check(plan)
        return Prepared(plan, Bindings(steps, folder), description or Description(), check)

    async def start(
        self,
        prepared: Prepared,
        given: object,
        *,
        key: str | None = None,
        limits: Limits | None = None,
    ) -> Admitted:
        """Admit a run, and return once it is on disk.

        given   the input, as Python values of JSON · key: at most 512 bytes; None: always a new run
        limits  what is set wins over the definition's. None: the definition's own

        Raises `InvalidRequest` for an input that does not fit, `Conflict` for a key that belongs to
        another request (nothing was written), `CapacityUnavailable` when the disk is full.
        """
        self._check()
        body = _input(prepared, given)
        merged = _merged(prepared.plan.definition.limits, limits)
        self._clock.hold("store")
        try:
            return await self._start(prepared, body, key, merged)
        finally:
            self._clock.release("store")

    async def _start(
        self, prepared: Prepared, body: bytes, key: str | None, merged: Limits
    ) -> Admitted:
        if key is None:
            await self._put(prepared)
            born = await self._admit(prepared, body, None, merged)
            assert isinstance(born, str), "a run without a key cannot find it taken"
            return Admitted(born, created=True)
        _check_key(key)
        return await self._one_at_a_time(key, lambda: self._keyed(prepared, body, key, merged))

    async def _one_at_a_time(self, key: str, start: Callable[[], Awaitable[Admitted]]) -> Admitted:
        """Starts of one key follow each other: the first writes, the others find what it wrote."""
        while (before := self._keys.get(key)) is not None:
            await before
        done = self._keys[key] = asyncio.get_running_loop().create_future()
        try:
            return await start()
        finally:
            del self._keys[key]
            done.set_result(None)

    async def _keyed(self, prepared: Prepared, body: bytes, key: str, limits: Limits) -> Admitted:
        request = request_digest(prepared.plan.digest.hex(), body, limits)
        known = await self._store.run_by_key(key)
        if known is None:
            await self._put(prepared)
            born = await self._admit(prepared, body, key, limits)
            if isinstance(born, str):
                return Admitted(born, created=True)
            known = await self._store.run(born.run)
        if known.new.request != request:
            raise await self._conflict(known, prepared, body, key, limits)
        return Admitted(known.new.run, created=False)

    async def _admit(
        self, prepared: Prepared, body: bytes, key: str | None, limits: Limits
    ) -> str | KeyTaken:
        admission = Admission(
            self._entropy.readable(RUN_PREFIX, self._clock.now()),
            prepared.plan.definition,
            prepared.plan.digest.hex(),
            body,
            prepared.bindings,
            limits,
            key,
            self._authority(),
        )
        reply: asyncio.Future[str | KeyTaken] = asyncio.get_running_loop().create_future()
        self._born(Birth(admission, prepared.plan, reply))
        return await reply

    async def _put(self, prepared: Prepared) -> None:
        digest = prepared.plan.digest
        if digest in self._stored:
            return
        self._fault("admission.before-definition")
        description = msgspec.json.encode(prepared.description, order="sorted")
        await self._store.put_definition(digest, prepared.plan.body, description)
        self._fault("admission.after-definition")
        self._stored.add(digest)

    def _bind(self, path: str, node: Node, root: Path | None) -> Binding:
        found = self._resolve(node.call or "", root)
        effect = node.effect or found.effect or "mutating"
        retry = node.retry or Retry()
        problem = retry_problem(effect, retry)
        if problem is not None:
            raise InvalidRequest(
                f"step {path}: {problem}",
                code="retry-repeats-effect",
                check="retry",
                facts={"step": path, "effect": effect},
            )
        return Binding(
            found.name,
            effect,
            found.contract,
            found.mode_under(effect),
            retry.max_attempts or found.max_attempts or 1,
        )

    async def _conflict(
        self, known: StoredRun, prepared: Prepared, body: bytes, key: str, limits: Limits
    ) -> Conflict:
        differs = []
        if known.new.definition != prepared.plan.digest:
            differs.append("definition")
        if _decode_limits(known.new.limits) != limits:
            differs.append("limits")
        payload = await self._store.payload(known.new.run, 1)
        if payload is None or payload.body != body:
            differs.append("input")
        return Conflict(
            f"the key {key!r} belongs to run {known.new.run}, which was started with another "
            f"{' and another '.join(differs) or 'request'}",
            code="key-taken",
            check="key",
            facts={"key": key, "run": known.new.run, "differs": [*differs]},
            next_step="choose another key, or start with exactly the same request",
        )


def _input_check(plan: Plan) -> Validator | None:
    if plan.definition.input is None:
        return None
    from tallystick.core.schemas import Validator  # only where a schema is declared

    return Validator(plan.definition.input, plan.definition.types)


def _input(prepared: Prepared, given: object) -> bytes:
    try:
        body = encode(given)
    except ValueRefused as refused:
        raise InvalidRequest(
            f"the input is not JSON: {refused}", code="input-not-json", check="input"
        ) from refused
    if len(body) > INPUT_BYTES_MAX:
        raise InvalidRequest(
            f"the input has {len(body)} bytes, more than {INPUT_BYTES_MAX}",
            code="input-too-large",
            check="input",
            facts={"bytes": len(body), "limit": INPUT_BYTES_MAX},
        )
    if prepared.check is not None:
        problems = [str(p) for p in prepared.check.validate(decode_trusted(body))]
        if problems:
            raise InvalidRequest(
                f"the input does not fit the schema of {prepared.plan.definition.workflow}: "
                + "; ".join(problems[:5]),
                code="input-invalid",
                check="input",
                facts={"problems": [*problems]},
            )
    return body


def _check_key(key: str) -> None:
    size = len(key.encode("utf-8", "surrogatepass"))
    if not key or size > KEY_BYTES_MAX or not key.isprintable():
        raise InvalidRequest(
            f"a key has 1 to {KEY_BYTES_MAX} bytes of printable text",
            code="key-invalid",
            check="key",
            facts={"bytes": size},
        )


def _merged(declared: Limits, asked: Limits | None) -> Limits:
    if asked is None:
        return declared
    return Limits(
        declared.duration_ms if asked.duration_ms is None else asked.duration_ms,
        declared.attempts if asked.attempts is None else asked.attempts,
        declared.concurrency if asked.concurrency is None else asked.concurrency,
    )
