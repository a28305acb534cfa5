"""The same verbs without `await`, for scripts and notebooks.

    with open_blocking("orders.db", engine=True) as tally:
        print(tally.run("orders.yaml", input={"number": 17}))

One thread of its own runs the event loop, with the engine if this is one; every verb hands its
coroutine over and waits. So it works wherever there is a loop already, as in a notebook.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from tallystick.core.definition import Definition, Limits
from tallystick.core.messages import Decision
from tallystick.surfaces.client.handle import RunHandle
from tallystick.surfaces.client.runs import HistoryEvent, Json, RunInfo
from tallystick.surfaces.client.steps import StepInfo
from tallystick.surfaces.client.tally import EngineOf, Tally, open_tally

T = TypeVar("T")


class Bridge:
    """A thread with an event loop, and how others wait for what it does."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="tally-client", daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait for its answer, or its exception. Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End loop and thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


class BlockingRun:
    """A run; see `RunHandle`."""

    def __init__(self, bridge: Bridge, handle: RunHandle) -> None:
        self._bridge = bridge
        self._handle = handle
        self.id = handle.id
        self.created = handle.created

    def status(self) -> RunInfo:
        """See `RunHandle.status`."""
        return self._bridge.do(self._handle.status())

    def steps(self) -> list[StepInfo]:
        """See `RunHandle.steps`."""
        return self._bridge.do(self._handle.steps())

    def settled(self) -> RunInfo:
        """See `RunHandle.settled`."""
        return self._bridge.do(self._handle.settled())

    def result(self, timeout: float | None = None) -> Json:
        """See `RunHandle.result`."""
        return self._bridge.do(self._handle.result(timeout))

    def events(self, after: int = 0) -> Iterator[HistoryEvent]:
        """See `RunHandle.events`."""
        following = self._handle.events(after)
        while (event := self._bridge.do(_next(following))) is not None:
            yield event


class BlockingTally:
    """An open store; see `Tally`. Use as `with open_blocking(...) as tally`."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._bridge: Bridge | None = None

    def __enter__(self) -> Self:
        self._bridge = Bridge()
        try:
            self._bridge.do(self._tally.__aenter__())
        except BaseException:
            self._bridge.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        bridge = self._open
        try:
            bridge.do(self._tally.close())
        finally:
            bridge.close()

    def start(
        self,
        definition: str | os.PathLike[str] | Definition,
        input: Json = None,  # noqa: A002  the word of the language
        key: str | None = None,
        limits: Limits | None = None,
    ) -> BlockingRun:
        """See `Tally.start`."""
        handle = self._open.do(self._tally.start(definition, input, key, limits))
        return BlockingRun(self._open, handle)

    def run(
        self,
        definition: str | os.PathLike[str] | Definition,
        input: Json = None,  # noqa: A002  the word of the language
        key: str | None = None,
        limits: Limits | None = None,
        *,
        timeout: float | None = None,
    ) -> Json:
        """See `Tally.run`."""
        return self._open.do(self._tally.run(definition, input, key, limits, timeout=timeout))

    def get(self, run: str) -> BlockingRun:
        """See `Tally.get`."""
        return BlockingRun(self._open, self._open.do(self._tally.get(run)))

    def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        key: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[RunInfo]:
        """See `Tally.list`."""
        return self._open.do(
            self._tally.list(status=status, workflow=workflow, key=key, before=before, limit=limit)
        )

    def history(self, run: str, after: int = 0) -> Sequence[HistoryEvent]:
        """See `Tally.history`."""

        async def all_of_it() -> list[HistoryEvent]:
            return [event async for event in self._tally.history(run, after)]

        return self._open.do(all_of_it())

    def find(self, beginning: str, limit: int = 10) -> builtins.list[str]:
        """See `Tally.find`."""
        return self._open.do(self._tally.find(beginning, limit))

    def counts(self) -> dict[str, int]:
        """See `Tally.counts`."""
        return self._open.do(self._tally.counts())

    def waiting_for_a_person(self) -> builtins.list[str]:
        """See `Tally.waiting_for_a_person`."""
        return self._open.do(self._tally.waiting_for_a_person())

    def resolve(
        self,
        run: str,
        step: str,
        *,
        outcome: Decision,
        output: Json = None,
        reason: str = "",
        actor: str | None = None,
    ) -> None:
        """See `Tally.resolve`."""
        self._open.do(
            self._tally.resolve(
                run, step, outcome=outcome, output=output, reason=reason, actor=actor
            )
        )

    def until_idle(self) -> None:
        """See `Tally.until_idle`."""
        self._open.do(self._tally.until_idle())

    @property
    def _open(self) -> Bridge:
        assert self._bridge is not None, "use it in a with statement"
        return self._bridge


def open_blocking(
    database: str | os.PathLike[str] | None = None,
    *,
    engine: EngineOf = False,
    setup: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
) -> BlockingTally:
    """Open a store for use without `await`; the arguments are those of `open`."""
    return BlockingTally(open_tally(database, engine=engine, setup=setup, root=root))


async def _next(following: AsyncIterator[HistoryEvent]) -> HistoryEvent | None:
    async for event in following:
        return event
    return None
