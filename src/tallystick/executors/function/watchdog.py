"""Says which line blocks the engine's loop, while it does.

Everything async shares one loop: a function that computes or waits without `await` stops timers,
reports and every other run. The loop beats, a thread listens. A measurement taken on the loop
would come too late, and never from a loop that is blocked for ever.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

BLOCKED_AFTER_S: Final = 1.0

_log: Final = logging.getLogger("tallystick.function")


class Pulse:
    """The decision: a loop is blocked if it did not beat for `limit_s`. Said once per blockage."""

    def __init__(self, limit_s: float, now_s: float) -> None:
        self.limit_s = limit_s
        self._last_s = now_s
        self._said = False

    def beat(self, now_s: float) -> None:
        """The loop is alive."""
        self._last_s, self._said = now_s, False

    def blocked_for(self, now_s: float) -> float | None:
        """Seconds without a beat, the first time they are too many. None: nothing to say."""
        silence_s = now_s - self._last_s
        if self._said or silence_s < self.limit_s:
            return None
        self._said = True
        return silence_s


class Watchdog:
    """Watches one loop from `start`, called on it, until `stop`. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float], limit_s: float = BLOCKED_AFTER_S) -> None:
        self._clock = clock
        self._pulse = Pulse(limit_s, clock())
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._loop_thread = 0

    def start(self) -> None:
        """Begin to watch the running loop."""
        self._loop_thread = threading.get_ident()
        self._beat(asyncio.get_running_loop())
        threading.Thread(target=self._listen, name="tally-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer. Called on the loop."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._pulse.beat(self._clock())
        self._timer = loop.call_later(self._pulse.limit_s / 4, self._beat, loop)

    def _listen(self) -> None:
        while not self._stopped.wait(self._pulse.limit_s / 4):
            silence_s = self._pulse.blocked_for(self._clock())
            if silence_s is not None:
                _log.warning(
                    "the engine's loop is blocked for %.1f s, at %s; use `await`, or an ordinary "
                    "function, which runs in a thread",
                    silence_s,
                    self._where(),
                )

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001  the documented way
        if frame is None:
            return "an unknown place"
        code = traceback.extract_stack(frame, limit=1)[-1]
        return f"{code.filename}:{code.lineno} in {code.name}"
