"""SIGINT and SIGTERM: the first asks for an orderly stop, the second ends the process at once.

The handler sets a flag and writes one byte. After the first signal both go back to the kernel's own
handling, so that a second one works even while Python is stuck in a call. A thread waits for the
byte: it wakes the event loop, and ends the process where the stop has not ended it a second after
the grace, because a function in a thread cannot be made to return.
"""

from __future__ import annotations

import os
import signal
import threading
from asyncio import AbstractEventLoop, Event
from collections.abc import Callable
from types import FrameType
from typing import Final

GRACE_MS: Final = 10_000
"""Source: the design's grace; the engine gives work that runs this long to end."""

LEEWAY_MS: Final = 900
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Whether this process was asked to stop. Make one, then `arm` it inside the event loop.

    grace_ms    None: the usual ten seconds
    signal      the number of the signal, None before it
    requested   set, in the loop, when it came
    """

    def __init__(
        self, grace_ms: int | None = None, leave: Callable[[int], object] = os._exit
    ) -> None:
        self.signal: int | None = None
        self.requested = Event()
        self._grace_ms = GRACE_MS if grace_ms is None else grace_ms
        self._leave = leave
        self._done = threading.Event()
        self._reader, self._writer = os.pipe()

    @property
    def grace_ms(self) -> int:
        """How long what runs may take to end."""
        return self._grace_ms

    def leave(self, code: int) -> None:
        """End the process now, without waiting for its threads."""
        self._leave(code)

    def arm(self, loop: AbstractEventLoop) -> None:
        """Take over both signals. Call it in the main thread."""
        os.set_blocking(self._writer, False)
        threading.Thread(target=self._watch, args=(loop,), daemon=True, name="stopping").start()
        for number in _SIGNALS:
            signal.signal(number, self._asked)

    def disarm(self) -> None:
        """The process is about to end by itself."""
        self._done.set()
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.write(self._writer, b".")

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_DFL)
        os.write(self._writer, b"!")

    def _watch(self, loop: AbstractEventLoop) -> None:
        os.read(self._reader, 1)
        if self._done.is_set() or self.signal is None:
            return
        loop.call_soon_threadsafe(self.requested.set)
        if not self._done.wait((self._grace_ms + LEEWAY_MS) / 1000):
            self._leave(128 + self.signal)
