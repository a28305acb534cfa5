"""Whoever waits for a run to change, or to come to rest. Nobody polls an engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

import msgspec

from tallystick.core.messages import RunEndKind
from tallystick.errors import TallyError

ANY: Final = ""
"""In place of a run's id: whichever changes next."""


class End(msgspec.Struct, frozen=True):
    """How a run ended. body: canonical JSON of its output or failure, None where there is none."""

    status: RunEndKind
    body: bytes | None


class Watchers:
    """Futures by run. Costs a run nothing that nobody watches."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._resting: dict[str, list[asyncio.Future[End | None]]] = {}
        self._failure: TallyError | None = None

    def next(self, run: str) -> asyncio.Future[None]:
        """Done at the next change of this run. Ask before looking at it: nothing is missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            _fail(future, self._failure)
        else:
            self._waiting.setdefault(run, []).append(future)
        return future

    def rest(self, run: str) -> asyncio.Future[End | None]:
        """Done with the end of this run, or with None once it stands still: look at it."""
        future: asyncio.Future[End | None] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            _fail(future, self._failure)
        else:
            self._resting.setdefault(run, []).append(future)
        return future

    def rested(self, run: str, end: End | None) -> None:
        """This run has ended, or stands still."""
        for future in self._resting.pop(run, ()):
            if not future.done():
                future.set_result(end)

    def changed(self, run: str) -> None:
        """Wake everybody who waits for this run, or for any."""
        for future in (*self._waiting.pop(run, ()), *self._waiting.pop(ANY, ())):
            if not future.done():
                future.set_result(None)

    def fail(self, error: TallyError) -> None:
        """Nothing changes any more: tell everybody, now and later, why."""
        self._failure = error
        futures: Iterable[asyncio.Future[Any]] = chain(
            *self._waiting.values(), *self._resting.values()
        )
        for future in futures:
            _fail(future, error)
        self._waiting.clear()
        self._resting.clear()


def _fail(future: asyncio.Future[Any], error: TallyError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # a watcher that went away before is nobody's oversight
