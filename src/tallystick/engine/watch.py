"""Whoever waits for a run to change. Nobody polls an engine in the same process."""

from __future__ import annotations

import asyncio
from typing import Final

from tallystick.errors import TallyError


ANY: Final = ""
"""In place of a run's id: whichever changes next."""


class Watchers:
    """Futures by run, done at the run's next change. Costs a run nothing that nobody watches."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._failure: TallyError | None = None

    def next(self, run: str) -> asyncio.Future[None]:
        """Done at the next change of this run. Ask before looking at the run, then nothing is missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            _fail(future, self._failure)
        else:
            self._waiting.setdefault(run, []).append(future)
        return future

    def changed(self, run: str) -> None:
        """Wake everybody who waits for this run, or for any."""
        for future in (*self._waiting.pop(run, ()), *self._waiting.pop(ANY, ())):
            if not future.done():
                future.set_result(None)

    def fail(self, error: TallyError) -> None:
        """Nothing changes any more: tell everybody, now and later, why."""
        self._failure = error
        for futures in self._waiting.values():
            for future in futures:
                _fail(future, error)
        self._waiting.clear()


def _fail(future: asyncio.Future[None], error: TallyError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # a watcher that went away before is nobody's oversight
