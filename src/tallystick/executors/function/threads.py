"""A bounded pool of threads that never holds up the end of the process.

`concurrent.futures` joins its threads when the interpreter ends, so one call that never returns
keeps the process alive for ever. These threads are daemons: after the engine's grace their work is
recorded as unknown, and the process may go.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

Work: TypeAlias = "tuple[contextvars.Context, Callable[[], None]]"

_log: Final = logging.getLogger("tallystick.function")


class Threads:
    """At most `size` threads, made when they are first needed and kept until `close`."""

    def __init__(self, size: int, name: str = "tally-task") -> None:
        self.size = size
        self._name = name
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()

    def start(self, context: contextvars.Context, work: Callable[[], None]) -> None:
        """Run `work` in a thread, in this context. It must not raise."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif len(self._threads) < self.size:
                self._add_thread()
        self._queue.put((context, work))

    def close(self, timeout_s: float = 0.1) -> int:
        """End the idle threads and those that become idle. Returns how many still run."""
        for _ in self._threads:
            self._queue.put(None)
        share = timeout_s / max(1, len(self._threads))
        for thread in self._threads:
            thread.join(share)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return len(self._threads)

    def _add_thread(self) -> None:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            context, work = item
            try:
                context.run(work)
            except BaseException:  # noqa: BLE001  the thread serves the next call too
                _log.exception("a thread's work raised, which it must not")
            del item, context, work
            with self._lock:
                self._idle += 1
