"""The verbs of the client: start, run, get, list, history, resolve, validate.

A client with `engine=True` is the engine of its store: it moves runs for as long as it is open;
with `engine="own"` only those that are started through it. One without only reads; what it writes
(a start, a decision about a doubt) it writes by being the engine for that moment, and it dispatches
nothing. Where another process is the engine, `OwnerElsewhere` names it. Only an engine and a start
make a database where there is none.
"""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from tallystick.core.commands import Resolve
from tallystick.core.definition import Definition, Limits
from tallystick.core.messages import Decision
from tallystick.engine.opening import Opened, World, open_engine, open_store, this_world
from tallystick.engine.stopping import GRACE_MS
from tallystick.errors import ForkedClient, InvalidRequest, NotFound, NotReady
from tallystick.store.protocol import RunFilter, Store
from tallystick.surfaces.client import listing
from tallystick.surfaces.client.asked import actor_here, number, output_body, text
from tallystick.surfaces.client.checking import Validated, validate
from tallystick.surfaces.client.following import news
from tallystick.surfaces.client.handle import RunHandle
from tallystick.surfaces.client.places import database_path, make_default_folder
from tallystick.surfaces.client.runs import (
    HistoryEvent,
    Json,
    RunInfo,
    checked_history,
    info_of,
    parse_step,
)
from tallystick.surfaces.client.sources import Sources
from tallystick.surfaces.client.steps import check_step

if TYPE_CHECKING:
    from tallystick.engine.engine import Engine
    from tallystick.engine.keeper import Role
    from tallystick.engine.watch import End

DECISIONS: Final[tuple[Decision, ...]] = ("succeeded", "failed", "cancelled", "never_happened")
BUILD: Final = "tallystick"

EngineOf: TypeAlias = bool | Literal["own"]
"""False: none · `own`: of the runs that are started through this client · True: of all runs."""


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
        self.created = False
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
        if self._role != "client":
            self._opened = await self._open_engine(self._role, create=True)
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

    def compile(self, definition: str | os.PathLike[str]) -> None:
        """Compile a definition file that is about to be started. Nothing need be open for it.

        Raises `InvalidRequest` with all its problems among the facts.
        """
        self._sources.compiled(Path(definition))

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

        With `engine="own"` a run that was found under its key is taken over from an engine that
        ended; `OwnerElsewhere` where nothing proves that it has.
        """
        async with self._engine(create=True) as engine:
            prepared = self._sources.prepared(
                engine.desk, definition, None if root is None else Path(root)
            )
            admitted = await engine.desk.start(prepared, input, key=key, limits=limits)
            found_at = 0 if admitted.created else await self._found(engine, admitted.run)
        return RunHandle(self, admitted.run, created=admitted.created, found_at=found_at)

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
        wanted = listing.statuses(status)
        which = RunFilter(
            None,
            None if workflow is None else text("workflow", workflow),
            None if key is None else text("key", key),
            None if before is None else number("before", before),
            number("limit", limit, least=1),
        )
        return await listing.page(await self.reading(), wanted, which)

    async def find(self, beginning: str, limit: int = 10) -> builtins.list[str]:
        """Ids of runs that begin with this text, in their order; at most `limit`."""
        if not beginning.isascii() or not beginning.isprintable():
            return []
        return await (await self.reading()).find(beginning, limit=limit)

    async def counts(self) -> dict[str, int]:
        """How many runs have each status; those that no run has are left out."""
        return await listing.counts(await self.reading())

    async def waiting_for_a_person(self, limit: int = listing.RUNS_MAX) -> builtins.list[str]:
        """Ids of runs of which nothing moves before somebody acts, oldest first; not all."""
        return await listing.waiting_for_a_person(await self.reading(), limit)

    async def history(self, run: str, after: int = 0) -> AsyncIterator[HistoryEvent]:
        """What is recorded of a run, in order, above sequence `after`.

        The chain of hashes is checked from there on.

        Raises `NotFound`, and `MaintenanceRequired` at the first event that was not recorded so.
        """
        number("after", after)
        store = await self.reading()
        async for event in checked_history(store, text("run", run), after=after):
            yield event

    async def follow(
        self, kinds: Collection[str] | None = None, *, until: asyncio.Event | None = None
    ) -> AsyncIterator[HistoryEvent]:
        """Events of every run as they are committed: an engine's from its beginning, else from now.

        kinds  None: all · until: once it is set, what is there is told, and this ends; None: never

        Raises what the engine failed with, if this client is one.
        """
        store, opened = await self.reading(), self._opened
        after = await store.position() if opened is None else opened.began_at
        async for event in news(store, after, self.next_change, kinds, until or asyncio.Event()):
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
        body = output_body(output) if outcome == "succeeded" else None
        if outcome != "succeeded" and output is not None:
            raise InvalidRequest("an output is given with `succeeded` only", code="output-unasked")
        key = parse_step(text("step", step))
        await check_step(await self.reading(), text("run", run), key)
        command = Resolve(key, outcome, actor or actor_here(), reason, body)
        async with self._engine() as engine:
            if self._opened is None:
                await self._ask_first(run, command)
            await engine.command(run, command)

    async def _ask_first(self, run: str, command: Resolve) -> None:
        """Raise what the rules say against it, before the run is taken for it."""
        from tallystick.engine.loading import refusal

        why = await refusal(await self.reading(), run, command)
        if why is not None:
            raise why

    def validate(
        self,
        definition: str | os.PathLike[str],
        *,
        import_code: bool = False,
        root: str | os.PathLike[str] | None = None,
    ) -> Validated:
        """Everything that is wrong with a definition file; see `validate`. Writes nothing."""
        return validate(definition, import_code=import_code, root=root)

    async def until_idle(self) -> None:
        """Return once every run is over, in doubt or waiting for a person. Only an engine can.

        Raises what the engine failed with.
        """
        self._check()
        if self._opened is not None:
            await self._opened.engine.run_until_idle()

    async def wait_over(self) -> None:
        """Return once the engine of this client has stopped. Raises what it failed with.

        Without an engine, at once.
        """
        if self._opened is not None:
            await self._opened.engine.wait_over()

    # ------------------------------------------------------------------------- for its handles

    async def reading(self) -> Store:
        """The store, for reading."""
        self._check()
        if self._opened is not None:
            return self._opened.store
        assert self._reader_lock is not None, "an open client has its lock"
        async with self._reader_lock:
            if self._reader is None:
                self._reader = await self._open_reader()
            return self._reader

    async def _open_reader(self) -> Store:
        world = self._world or this_world()
        try:
            return await open_store(self.path, world, create=False, read_only=True)
        except NotFound as missing:
            raise NotFound(
                f"there is no database at {self.path}",
                code="no-database",
                check="database",
                facts={"path": str(self.path.absolute())},
                next_step="tally run FILE makes one; if there is one elsewhere, name it: --db PATH",
            ) from missing

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
    async def _engine(self, *, create: bool = False) -> AsyncIterator[Engine]:
        """This client's engine; without one, the engine lock for this moment."""
        self._check()
        if self._opened is not None:
            self._opened.engine.check()
            yield self._opened.engine
            return
        moment = await self._open_engine("client", create=create)
        try:
            yield moment.engine
        finally:
            await moment.stop(0)

    async def _found(self, engine: Engine, run: str) -> int:
        """The newest event of a run that exists; an engine of its own runs carries it on.

        One that has ended or waits for a person is left as it is.
        """
        stored = await engine.scene.store.run(run)
        info = info_of(stored)
        if self._role == "own" and not info.ended and not info.needs_person:
            await engine.take(run)
        return stored.header.sequence

    async def _open_engine(self, role: Role, *, create: bool) -> Opened:
        if create:
            make_default_folder(self.path)
        setup = None
        if self._setup is not None:
            setup = _text(Path(self._setup))
        existed = self.path.exists()
        opened = await open_engine(
            self.path, build=BUILD, world=self._world, create=create, role=role, setup=setup
        )
        self.created = self.created or not existed
        return opened

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
    engine: EngineOf = False,
    setup: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    world: World | None = None,
) -> Tally:
    """Open a store: `async with open("orders.db", engine=True) as tally`.

    Args:
        database: path or `sqlite:///` URL. None: `$TALLY_DATABASE_URL`, else `.tally/tally.db`.
        engine: be the engine of the store: move its runs while it is open. `"own"`: only those
            that are started through this client. False: read, and write single commands.
        setup: SQL file that makes tables of your own, for transactional steps. It is run at every
            opening that writes, so it says `CREATE TABLE IF NOT EXISTS`.
        root: folder that tasks are imported from. None: the folder of each definition file.
        world: clock, chance and faults, in tests. None: those of this machine.

    Raises (when entered):
        OwnerElsewhere: this shall be an engine, and another process is one; it is named.
        NotFound: the folder does not exist. Without an engine that is told by the first verb, and
            so is that there is no database.
        UnsupportedSchema: not a store of this version.
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
