"""A store whose database is reached through threads: one that writes, one that reads.

The verbs of the contract, as coroutines over two `Worker`s. What they do in their threads is in
`transaction` (writing) and in the queries named here. A store that may have only one connection
reads in the thread that writes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Protocol

from msgspec.structs import astuple, replace

from tallystick.core.messages import Payload
from tallystick.errors import AuthorityLost, Conflict, NotFound, StoreUnavailable, TallyError
from tallystick.store import codec
from tallystick.store.codec import Row
from tallystick.store.faults import Fault
from tallystick.store.files import INLINE_MAX, Blobs
from tallystick.store.plan import BlobName, Write
from tallystick.store.protocol import (
    PENDING_MAX,
    ActivationRow,
    Answer,
    AttemptKey,
    AttemptRow,
    EngineRow,
    ListedRun,
    RunCount,
    RunFilter,
    StoredEvent,
    StoredRun,
    Transition,
)
from tallystick.store.transaction import (
    Batch,
    Refused,
    Session,
    Snapshot,
    commit_unknown,
    failed,
    write,
)
from tallystick.store.worker import Worker

PAGE_EVENTS = 256
PAGE_BYTES = 1024 * 1024
"""Events are read in pages of at most this many, and of this many bytes beyond the first one."""
LIST_MAX = 1000
LAST_CHARACTER = "\U0010ffff"
"""No id contains it: what begins with a text sorts below that text and this."""


class Reader(Protocol):
    """One connection that reads, each query in a short transaction of its own."""

    def rows(self, statement: str, params: Row) -> list[Row]:
        """All rows of a named query."""
        ...

    def query(self, sql: str, params: Sequence[object], limit: int) -> list[Row]:
        """Rows of a user's query, under the authorizer."""
        ...

    def close(self) -> None:
        """Close the connection; a second call is a no-op."""
        ...


class WritingSession(Session, Protocol):
    """A session with what a store needs beside batches."""

    def rows(self, statement: str, params: Row) -> list[Row]:
        """All rows of a named query, as this connection sees them."""
        ...

    def script(self, sql: str) -> None:
        """Run a user's setup script under the authorizer, in a transaction of its own."""
        ...

    def after_job(self) -> None:
        """What the writer's thread does when a job was answered: checkpoints."""
        ...

    def close(self) -> None:
        """Checkpoint and close; a second call is a no-op."""
        ...


class ThreadedStore:
    """The contract of `protocol.Store` over a session and a reader, each made in its own thread.

    Open one with the function of its database module.

    store_id  of the database, for ever · path: its file
    warnings  sentences for people about where it lies
    """

    def __init__(
        self,
        *,
        store_id: str,
        path: str,
        writer: Worker,
        session: WritingSession,
        reading: Worker,
        reader: Reader,
        reopen: Callable[[], Reader] | None,
        blobs: Blobs,
        fault: Fault,
        warnings: Sequence[str] = (),
    ) -> None:
        self.store_id = store_id
        self.path = path
        self.warnings = tuple(warnings)
        self._writer, self._session = writer, session
        self._reading, self._reader = reading, reader
        self._reopen, self._stale = reopen, False
        self._blobs, self._fault = blobs, fault
        self._filing: Worker | None = None

    async def commit(self, batch: Sequence[Transition], *, epoch: int) -> list[Answer]:
        """Write a batch in one database transaction; see `protocol.Store.commit`."""
        if not batch:
            return []
        blobs = await self._put_blobs(batch)
        whole = Batch(batch, epoch, blobs)
        try:
            return await self._writer.do(lambda: write(self._session, whole, self._fault))
        except StoreUnavailable:
            self._stale = True
            raise

    async def _put_blobs(self, batch: Sequence[Transition]) -> dict[tuple[str, int], BlobName]:
        """Bring large bodies to disk before any transaction that cites them."""
        large = [
            (transition.run, sealed.sequence, sealed.payload.body)
            for transition in batch
            for sealed in transition.events
            if sealed.payload is not None and len(sealed.payload.body) > INLINE_MAX
        ]
        if not large:
            return {}

        def put() -> dict[tuple[str, int], BlobName]:
            try:
                return {
                    (run, sequence): BlobName(self._blobs.put(body), len(body))
                    for run, sequence, body in large
                }
            except TallyError:
                raise
            except Exception as error:
                raise failed(error) from error

        return await self._files().do(put)

    def _files(self) -> Worker:
        if self._filing is None:
            self._filing = Worker("tally-files")
        return self._filing

    async def put_definition(self, digest: bytes, body: bytes, description: bytes) -> None:
        """Store a definition; `Conflict` if the digest has other content. See `protocol.Store`."""
        row = (digest, body.decode(), description.decode())

        def put(_snapshot: Snapshot) -> None:
            self._session.apply(Write("insert_definition", [row]))
            self._fault("definition.before-commit")

        await self._alone(put, conflict="this definition digest has other content")

    async def _alone(self, put: Callable[[Snapshot], None], *, conflict: str) -> None:
        """Run statements in a transaction of their own; nothing is written unless all succeed."""

        def job() -> None:
            try:
                put(self._session.begin())
                self._session.commit()
            except Refused as error:
                self._session.rollback()
                raise Conflict(conflict, facts={"answer": str(error.answer)}) from error
            except TallyError:
                self._session.rollback()
                raise
            except Exception as error:
                self._session.rollback()
                raise failed(error) from error

        await self._writer.do(job)

    async def definition(self, digest: bytes) -> bytes:
        """See `protocol.Store`."""
        return await self._body("read_definition", digest, "definition")

    async def terms(self, digest: bytes) -> bytes:
        """See `protocol.Store`."""
        return await self._body("read_terms", digest, "terms")

    async def _body(self, statement: str, digest: bytes, what: str) -> bytes:
        rows = await self._rows(statement, digest)
        if not rows:
            raise NotFound(f"no {what} {digest.hex()}", facts={"digest": digest.hex()})
        body: str = rows[0][0]
        return body.encode()

    async def _rows(self, statement: str, *params: object) -> list[Row]:
        return await self._reading.do(lambda: self._fresh().rows(statement, params))

    def _fresh(self) -> Reader:
        """The reader; after a commit of unknown outcome it is a new connection."""
        if self._stale and self._reopen is not None:
            self._reader.close()
            self._reader = self._reopen()
        self._stale = False
        return self._reader

    async def run(self, run: str) -> StoredRun:
        """See `protocol.Store`."""
        return (await self.listed(run)).stored

    async def listed(self, run: str) -> ListedRun:
        """See `protocol.Store`."""
        rows = await self._rows("read_run", run)
        if not rows:
            raise NotFound(f"no run {run}", facts={"run": run})
        return codec.listed_run(rows[0])

    async def run_by_key(self, key: str) -> StoredRun | None:
        """See `protocol.Store`."""
        rows = await self._rows("read_run_by_key", key)
        return codec.listed_run(rows[0]).stored if rows else None

    async def runs(self, which: RunFilter) -> list[ListedRun]:
        """See `protocol.Store`."""
        rows = await self._rows(
            "list_runs",
            which.before if which.before is not None else 2**63 - 1,
            None if which.status is None else json.dumps(which.status),
            which.workflow,
            which.key,
            min(which.limit, LIST_MAX),
        )
        return [codec.listed_run(row) for row in rows]

    async def find(self, beginning: str, *, limit: int) -> list[str]:
        """See `protocol.Store`."""
        rows = await self._rows("find_runs", beginning, beginning + LAST_CHARACTER, limit)
        return [row[0] for row in rows]

    async def counts(self) -> list[RunCount]:
        """See `protocol.Store`."""
        return [
            RunCount(status, reason, engine, bool(damaged), count)
            for status, reason, engine, damaged, count in await self._rows("count_runs")
        ]

    async def halted(self, *, after: int, limit: int) -> list[ListedRun]:
        """See `protocol.Store`."""
        rows = await self._rows("list_halted", after, min(limit, LIST_MAX))
        return [codec.listed_run(row) for row in rows]

    async def unfinished(self, *, after: int, limit: int) -> list[ListedRun]:
        """See `protocol.Store`."""
        rows = await self._rows("list_unfinished", after, min(limit, LIST_MAX))
        return [codec.listed_run(row) for row in rows]

    async def events(self, run: str, *, after: int = 0) -> AsyncIterator[StoredEvent]:
        """See `protocol.Store`. A run that does not exist has none."""
        while page := await self._page(run, after):
            for event in page:
                yield event
            after = page[-1].sequence

    async def _page(self, run: str, after: int) -> list[StoredEvent]:
        return await self._reading.do(lambda: self._read_page(run, after))

    def _read_page(self, run: str, after: int) -> list[StoredEvent]:
        rows = self._fresh().rows("read_events", (run, after, PAGE_EVENTS))
        return self._events_of((run, *row) for row in rows)

    async def position(self) -> int:
        """See `protocol.Store`."""
        position: int = (await self._rows("snapshot"))[0][1]
        return position

    async def feed(self, *, after: int, limit: int) -> list[StoredEvent]:
        """See `protocol.Store`. Ends early where the events weigh much."""

        def read() -> list[StoredEvent]:
            rows = self._fresh().rows("feed", (after, min(limit, PAGE_EVENTS)))
            return self._events_of(rows)

        return await self._reading.do(read)

    def _events_of(self, rows: Iterable[Row]) -> list[StoredEvent]:
        """Rows as events, until they weigh too much for one page."""
        page: list[StoredEvent] = []
        weight = 0
        for row in rows:
            run, position, sequence, transition, envelope, digest, *cited = row
            weight += len(envelope) + (cited[3] or len(cited[1] or ""))
            if page and weight > PAGE_BYTES:
                break
            payload = self._payload(run, sequence, envelope, cited)
            page.append(
                StoredEvent(run, position, sequence, transition, envelope.encode(), digest, payload)
            )
        return page

    def _payload(self, run: str, sequence: int, envelope: str, cited: Row) -> Payload | None:
        salt, body, blob, size = cited
        if salt is None:
            return None
        content = self._blobs.get(blob, size) if blob is not None else body.encode()
        return codec.payload(run, sequence, envelope, salt, content)

    async def payload(self, run: str, sequence: int) -> Payload | None:
        """See `protocol.Store`."""

        def read() -> Payload | None:
            rows = self._fresh().rows("read_payload", (run, sequence))
            if not rows:
                return None
            envelope, *cited = rows[0]
            return self._payload(run, sequence, envelope, cited)

        return await self._reading.do(read)

    async def attempts(self, run: str) -> list[AttemptRow]:
        """See `protocol.Store`. `MaintenanceRequired` where a row differs from its intent."""
        return [codec.attempt_row(run, row) for row in await self._rows("read_attempts", run)]

    async def pending(
        self, run: str, *, after: AttemptKey = ("", "", 0), limit: int = PENDING_MAX
    ) -> list[AttemptRow]:
        """See `protocol.Store`."""
        most = max(1, min(limit, PENDING_MAX))
        return [
            codec.attempt_row(run, row)
            for row in await self._rows("read_pending", run, *after, most)
        ]

    async def activations(self, run: str) -> list[ActivationRow]:
        """See `protocol.Store`."""
        return [codec.activation_row(row) for row in await self._rows("read_activations", run)]

    async def epoch(self) -> int:
        """See `protocol.Store`."""
        epoch: int = (await self._rows("store_row"))[0][2]
        return epoch

    async def put_engine(self, row: EngineRow) -> None:
        """See `protocol.Store`.

        Raises `AuthorityLost` under another epoch and `Conflict` if the instance is recorded
        otherwise; nothing was written then.
        """

        def put(snapshot: Snapshot) -> None:
            if snapshot.epoch != row.epoch:
                raise _epoch_lost(row.epoch, snapshot.epoch)
            self._write_engine(row)
            self._fault("engine.before-commit")

        await self._alone(put, conflict=f"engine instance {row.instance} is recorded otherwise")
        try:
            self._fault("engine.after-commit")
        except Exception as error:
            raise commit_unknown() from error

    def _write_engine(self, row: EngineRow) -> None:
        found = self._session.rows("read_engine", (row.instance,))
        if not found:
            self._session.apply(Write("insert_engine", [astuple(row)]))
            return
        recorded = codec.engine_row(found[0])
        if recorded == row:
            return
        if replace(recorded, ended=row.ended, ended_at=row.ended_at) != row:
            raise Refused
        self._session.apply(Write("end_engine", [(row.instance, row.ended, row.ended_at)]))

    async def engine(self, instance: str) -> EngineRow | None:
        """See `protocol.Store`."""
        rows = await self._rows("read_engine", instance)
        return codec.engine_row(rows[0]) if rows else None

    async def sweep_blobs(self, now: int) -> list[str]:
        """Remove files of payloads older than a day that nothing cites. now: ms since 1970."""

        def is_cited(name: str) -> bool:
            return bool(self._fresh().rows("cites_blob", (name,))[0][0])

        return await self._reading.do(lambda: self._blobs.sweep(now, is_cited))

    async def setup(self, script: str) -> None:
        """Run a user's schema script: tables of their own. Refused as a user statement is."""
        await self._writer.do(lambda: self._session.script(script))

    async def query(
        self, sql: str, params: Sequence[object] = (), *, limit: int = 10_000
    ) -> list[Any]:
        """Read the user's own tables, in a snapshot of what is committed.

        Raises `InvalidRequest` for what is not a query, or is not allowed to one.
        """
        return await self._reading.do(lambda: self._fresh().query(sql, params, limit))

    async def close(self) -> None:
        """See `protocol.Store`."""
        if self._filing is not None:
            await self._filing.stop(lambda: None)
        if self._reading is not self._writer:
            await self._reading.stop(lambda: self._reader.close())
        await self._writer.stop(self._session.close)


def _epoch_lost(held: int, now: int) -> AuthorityLost:
    return AuthorityLost(
        f"the engine epoch is {now}, not {held}: another engine was put in charge",
        code="epoch-moved",
        check="epoch",
        facts={"held": held, "epoch": now},
        next_step="stop; start a new engine if it shall be in charge",
    )
