"""What is due when: one heap for all of an engine's timers of one kind.

    durable    (wall instant, run): a scheduled try, a redispatch, a deadline. The instant is a
               stored fact; the heap only remembers to look, and is filled again at start
    timeouts   (monotonic instant, dispatch): how long one dispatch of a step may take

A key has at most one instant. Setting another makes the old entry stale; stale entries are passed
over when they come up, and the heap is built anew when most of it is stale. One wake-up is asked of
the clock at any time, for the earliest entry, so that ten thousand timers cost one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from tallystick.engine.clock import Clock, Wait

K = TypeVar("K", bound=Hashable)

STALE_MIN: Final = 64
"""Fewer stale entries than this are never worth building the heap anew."""


class Timers(Generic[K]):
    """A heap of (instant, key). `read` is the clock it follows, `due` what a due key is given to.

    Entries of one instant come up in the order in which they were set.
    """

    def __init__(self, clock: Clock, read: Callable[[], int], due: Callable[[K], None]) -> None:
        self._clock = clock
        self._read = read
        self._due = due
        self._at: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0
        self._wait: Wait | None = None
        self._wait_until = 0
        self._stopped = False

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def at(self, key: K) -> int | None:
        """When this key is due, or None."""
        return self._at.get(key)

    def set(self, key: K, instant: int) -> None:
        """This key is due then, and at no other time. May be called while timers come up."""
        if self._at.get(key) == instant:
            return
        self._at[key] = instant
        self._count += 1
        heappush(self._heap, (instant, self._count, key))
        if len(self._heap) > 2 * len(self._at) + STALE_MIN:
            self._rebuild()
        if self._wait is None or instant < self._wait_until:
            self._ask()

    def drop(self, key: K) -> None:
        """This key is not due any more. One that is not there is ignored."""
        self._at.pop(key, None)

    def stop(self) -> None:
        """Nothing comes up any more."""
        self._stopped = True
        self._at.clear()
        self._heap.clear()
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None

    def look(self) -> None:
        """Hand over everything that is due by now. Called by the clock; harmless at any time."""
        now = self._read()
        while self._heap and self._heap[0][0] <= now:
            instant, _, key = heappop(self._heap)
            if self._at.get(key) == instant:
                del self._at[key]
                self._due(key)
        self._ask()

    def _woken(self) -> None:
        self._wait = None
        self.look()

    def _ask(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
        if not self._heap or self._stopped:
            return
        self._wait_until = self._heap[0][0]
        delay = max(0, self._wait_until - self._read())
        self._wait = self._clock.call_in(min(delay, self._clock.look_again_ms), self._woken)

    def _rebuild(self) -> None:
        self._heap = [entry for entry in self._heap if self._at.get(entry[2]) == entry[0]]
        heapify(self._heap)
