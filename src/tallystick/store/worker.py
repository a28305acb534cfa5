"""A thread that does one job after another, and how a coroutine waits for it.

A connection to a database belongs to such a thread for life. A job is a plain function; its answer
travels back by one call into the loop that asked.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from tallystick.errors import ForkedClient, StoreUnavailable

T = TypeVar("T")
_Job: TypeAlias = tuple[
    Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop
]  # Any: a queue of jobs of all types


class Worker:
    """One thread with a queue. after: called in the thread when a job has been answered."""

    def __init__(self, name: str, after: Callable[[], None] | None = None) -> None:
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self.after = after
        self._pid = os.getpid()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def check_process(self) -> None:
        """Raise `ForkedClient` in a child of the process that opened the store."""
        if os.getpid() != self._pid:
            raise ForkedClient(
                "this store was opened before a fork",
                check="process",
                facts={"opened_by": self._pid, "process": os.getpid()},
                next_step="open the store again in the child",
            )

    async def do(self, job: Callable[[], T]) -> T:
        """Run a job in the thread and wait for its answer. A job is always finished."""
        self.check_process()
        if self._closed:
            raise StoreUnavailable("this store is closed", code="store-closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put((job, future, loop))
        return await future

    async def stop(self, last: Callable[[], None]) -> None:
        """Finish what was submitted, do `last`, and end the thread. A second call is a no-op."""
        if self._closed:
            return
        done = asyncio.ensure_future(self.do(last))
        await asyncio.sleep(0)  # let it be submitted before the door closes
        self._closed = True
        self._queue.put(None)
        await done

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            _do(*job)
            del job
            if self.after is not None and not self._closed:
                self.after()


def _do(job: Callable[[], T], future: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> None:
    try:
        answer = job()
    except BaseException as error:  # noqa: BLE001  it belongs to whoever waits
        _tell(loop, future, None, error)
    else:
        _tell(loop, future, answer, None)


def _tell(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[T],
    answer: T | None,
    error: BaseException | None,
) -> None:
    try:
        loop.call_soon_threadsafe(_settle, future, answer, error)
    except RuntimeError:
        return  # the loop is closed: nobody waits any more


def _settle(future: asyncio.Future[Any], answer: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(answer)
