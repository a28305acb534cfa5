"""The verbs of the client: start, run, get, list, history, resolve, validate.

A client with `engine=True` is the engine of its store: it moves runs for as long as it is open. One
without only reads; what it writes (a start, a decision about a doubt) it writes by being the engine
for that moment, and it dispatches nothing. Where another process is the engine, `OwnerElsewhere`
names it.
"""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from tallystick.core.commands import Resolve
from tallystick.core.definition import Definition, Limits
from tallystick.core.messages import Decision
from tallystick.core.values import ValueRefused, encode
from tallystick.engine.opening import Opened, World, open_engine, open_store, this_world
from tallystick.engine.stopping import GRACE_MS
from tallystick.errors import ForkedClient, InvalidRequest, NotReady
from tallystick.store.protocol import RunFilter, Store
from tallystick.surfaces.client.asked import number, text
from tallystick.surfaces.client.handle import RunHandle
from tallystick.surfaces.client.places import database_path, make_default_folder
from tallystick.surfaces.client.runs import (
    HistoryEvent,
    Json,
    RunInfo,
    history_of,
    info_of,
    parse_step,
)
from tallystick.surfaces.client.sources import Sources, Validated, validate

if TYPE_CHECKING:
    from tallystick.engine.engine import Engine
    from tallystick.engine.keeper import Role
    from tallystick.engine.watch import End

DECISIONS: Final[tuple[Decision, ...]] = ("succeeded", "failed", "cancelled", "never_happened")
BUILD: Final = "tallystick"


class Tally:
    """An open store. Use as `async with open(...) as tally`; see `open` for the arguments."""

    def __init__(
        self,
        path: Path,
        *,
        role: Role,
        setup: str | os.PathLike[str] | None,
        root: str | os.PathLike[str] | None,
        world: World | None,
    ) -> None:
        self.path = path
        self._role = role
        self._setup = setup
        self._sources = Sources(None if root is None else Path(root))
        self._world = world
        self._opened: Opened | None = None
        self._reader: Store | None = None
        self._reader_lock: asyncio.Lock | None = None
        self._pid = 0

    async def __aenter__(self) -> Self:
        self._pid = os.getpid()
        self._reader_lock = asyncio.Lock()
        make_default_folder(self.path)
        if self._role != "client":
            self._opened = await self._open_engine(self._role)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self, grace: float = GRACE_MS / 1_000) -> None:
        """Stop the engine, if this is one, and close the store. grace: seconds for what runs."""
        opened, self._opened = self._opened, None
        reader, self._reader = self._reader, None
        self._pid = 0
        if opened is not None:
            await opened.stop(round(grace * 1_000))
        if reader is not None:
            await reader.close()

    # ---------------------------------------------------------------------------------- verbs

    async def start(
        self,
        definition: str | os.PathLike[str] | Definition,
        input: Json = None,  # noqa: A002  the word of the language
        key: str | None = None,
        limits: Limits | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> RunHandle:
        """Start a run, and return once it is on disk: from then on it is never lost.

        Args:
            definition: path of a definition file, or a `Definition`.
            input: JSON as Python values, valid by the definition's input schema.
            key: the same key with the same request is the same run. None: always a new one.
            limits: what is set here wins over the file's.
            root: folder that tasks are imported from. None: `open`'s, else the file's own folder.

        Raises:
            InvalidRequest: file, input or limits are wrong. Nothing was written.
            Conflict: the key belongs to another request; the error says what differs.
            OwnerElsewhere: another process is the engine of this store. Nothing was written.
            CapacityUnavailable: the disk is full. Nothing was written.
        """
        async with self._engine() as engine:
            prepared = self._sources.prepared(
                engine.desk, definition, None if root is None else Path(root)
            )
            admitted = await engine.desk.start(prepared, input, key=key, limits=limits)
            if not admitted.created:
                engine.keeper.adopt(admitted.run)
        return RunHandle(self, admitted.run, created=admitted.created)

    async def run(
        self,
        definition: str | os.PathLike[str] | Definition,
        input: Json = None,  # noqa: A002  the word of the language
        key: str | None = None,
        limits: Limits | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  seconds, as in asyncio
    ) -> Json:
        """`start`, then `result`: the output of the run. Only an engine can do it."""
        self._check()
        if self._opened is None:
            raise NotReady(
                "without an engine nothing would run this",
                code="no-engine",
                next_step="open the store with engine=True, or use `start`",
            )
        handle = await self.start(definition, input, key, limits)
        return await handle.result(timeout)

    async def get(self, run: str) -> RunHandle:
        """The run of this id. Raises `NotFound`."""
        await (await self.reading()).run(text("run", run))
        return RunHandle(self, run)

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        key: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[RunInfo]:
        """A page of runs, newest first. All given conditions hold; None: any.

        before  a page's last `number`: continue below it · limit: 1 to 1,000; more is 1,000
        """
        statuses = (status,) if isinstance(status, str) else status
        which = RunFilter(
            None if statuses is None else tuple(text("status", word) for word in statuses),
            None if workflow is None else text("workflow", workflow),
            None if key is None else text("key", key),
            None if before is None else number("before", before),
            number("limit", limit, least=1),
        )
        listed = await (await self.reading()).runs(which)
        return [info_of(item.stored, item.number) for item in listed]

    async def history(self, run: str, after: int = 0) -> AsyncIterator[HistoryEvent]:
        """What is recorded of a run, in order, above sequence `after`. Raises `NotFound`."""
        number("after", after)
        store = await self.reading()
        await store.run(text("run", run))
        async for event in history_of(store, run, after=after):
            yield event

    async def resolve(
        self,
        run: str,
        step: str,
        *,
        outcome: Decision,
        output: Json = None,
        reason: str = "",
        actor: str | None = None,
    ) -> None:
        """Record a person's decision about a step in doubt. Nothing is dispatched by it.

        Args:
            run: its id.
            step: as people write it, `charge` or `fix[2].build`.
            outcome: `succeeded` (with its output), `failed`, `cancelled` or `never_happened`.
            output: what the step would have returned, JSON; only with `succeeded`.
            reason: why it is known. Recorded with the decision.
            actor: who says so. None: the user of this process, as the kernel names them.

        Raises:
            NotReady: the step is not in doubt. NotFound: no such run or step.
            Conflict: it was decided otherwise before. InvalidRequest: the output does not fit.
            OwnerElsewhere: another process owns the run, and is named. Nothing was written.
        """
        if outcome not in DECISIONS:
            raise InvalidRequest(
                f"{outcome!r} is not a decision",
                code="decision-unknown",
                facts={"decisions": [*DECISIONS]},
            )
        body = _output(output) if outcome == "succeeded" else None
        if outcome != "succeeded" and output is not None:
            raise InvalidRequest("an output is given with `succeeded` only", code="output-unasked")
        key = parse_step(text("step", step))
        command = Resolve(key, outcome, actor or _actor(), reason, body)
        async with self._engine() as engine:
            await engine.command(text("run", run), command)

    def validate(self, definition: str | os.PathLike[str]) -> Validated:
        """Everything that is wrong with a definition file. Imports and writes nothing."""
        return validate(definition)

    async def until_idle(self) -> None:
        """Return once every run is over, in doubt or waiting for a person. Only an engine can.

        Raises what the engine failed with.
        """
        self._check()
        if self._opened is not None:
            await self._opened.engine.run_until_idle()

    # ------------------------------------------------------------------------- for its handles

    async def reading(self) -> Store:
        """The store, for reading."""
        self._check()
        if self._opened is not None:
            return self._opened.store
        assert self._reader_lock is not None, "an open client has its lock"
        async with self._reader_lock:
            if self._reader is None:
                world = self._world or this_world()
                self._reader = await open_store(self.path, world, create=False, read_only=True)
            return self._reader

    def next_change(self, run: str) -> asyncio.Future[None] | None:
        """Done at the run's next change; None: only looking again tells."""
        self._check()
        return None if self._opened is None else self._opened.engine.keeper.watchers.next(run)

    def next_rest(self, run: str) -> asyncio.Future[End | None] | None:
        """Done once the run has ended or stands still; None: only looking again tells."""
        self._check()
        return None if self._opened is None else self._opened.engine.keeper.watchers.rest(run)

    def moves(self, run: str) -> bool:
        """The engine of this process has it in memory, and it is neither over nor stuck."""
        if self._opened is None:
            return False
        copy = self._opened.engine.copy(run)
        return copy is not None and copy.ended is None and not copy.doubts and copy.in_flight > 0

    @property
    def engine(self) -> Engine | None:
        """The engine of this client, or None."""
        return None if self._opened is None else self._opened.engine

    @asynccontextmanager
    async def _engine(self) -> AsyncIterator[Engine]:
        """This client's engine; without one, the engine lock for this moment."""
        self._check()
        if self._opened is not None:
            self._opened.engine.check()
            yield self._opened.engine
            return
        moment = await self._open_engine("client")
        try:
            yield moment.engine
        finally:
            await moment.stop(0)

    async def _open_engine(self, role: Role) -> Opened:
        setup = None
        if self._setup is not None:
            setup = _text(Path(self._setup))
        return await open_engine(self.path, build=BUILD, world=self._world, role=role, setup=setup)

    def _check(self) -> None:
        if self._pid == os.getpid():
            return
        if self._pid == 0:
            raise NotReady("this client is not open", code="client-closed")
        raise ForkedClient(
            "this client was opened before a fork",
            check="process",
            facts={"opened_by": self._pid, "process": os.getpid()},
            next_step="open the store again in the child",
        )


def open_tally(
    database: str | os.PathLike[str] | None = None,
    *,
    engine: bool | Literal["own"] = False,
    setup: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    world: World | None = None,
) -> Tally:
    """Open a store: `async with open("orders.db", engine=True) as tally`.

    Args:
        database: path or `sqlite:///` URL. None: `$TALLY_DATABASE_URL`, else `.tally/tally.db`.
        engine: be the engine of the store: move its runs while it is open. `"own"`: only those
            that are started through this client.
        setup: SQL file that makes tables of your own, for transactional steps. It is run at every
            opening that writes, so it says `CREATE TABLE IF NOT EXISTS`.
        root: folder that tasks are imported from. None: the folder of each definition file.
        world: clock, chance and faults, in tests. None: those of this machine.

    Raises (when entered):
        OwnerElsewhere: with `engine=True`, and another process is the engine; it is named.
        NotFound: the folder does not exist. UnsupportedSchema: not a store of this version.
    """
    role: Role = "own" if engine == "own" else "engine" if engine else "client"
    return Tally(database_path(database), role=role, setup=setup, root=root, world=world)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"the setup script {path} cannot be read: {error}", code="setup-unreadable"
        ) from error


def _output(value: Json) -> bytes:
    try:
        return encode(value)
    except ValueRefused as refused:
        raise InvalidRequest(
            f"the output is not JSON: {refused}", code="output-not-json"
        ) from refused


def _actor() -> str:
    """The user of this process, as the kernel and the password file name them."""
    uid = os.getuid()
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
