"""What is due when: a layered map from activations to instants that knows its order.

A step that failed for everybody (the receiver is down) leaves thousands of tries waiting, and every
transition asks which is the first. The settled layer is kept sorted beside its map, so that the
answer costs what the draft has changed, not how many wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from tallystick.core.identity import ActivationKey
from tallystick.core.layered import Layered, Overlay


class Schedule(Overlay[ActivationKey, int]):
    """An `Overlay` whose keys can be taken by their instants, ties by key."""

    __slots__ = ("_order",)

    def __init__(
        self,
        below: Layered[ActivationKey, int] | None = None,
        order: list[tuple[int, ActivationKey]] | None = None,
    ) -> None:
        super().__init__(Layered() if below is None else below)
        self._order = [] if order is None else order

    def fork(self) -> Schedule:
        """A draft over the same settled layer. Only a settled map may be forked."""
        assert not self._draft, "fork of a map with an unsettled draft"
        return Schedule(self._below, self._order)

    def keep(self) -> Schedule:
        """Fold the draft into the settled layer, and give the schedule to keep: this one."""
        if self._draft:
            order, below = self._order, self._below
            for key, value in self._draft.items():
                former = below.get(key)
                if former is not None:
                    del order[bisect_left(order, (former, key))]
                if isinstance(value, int):
                    insort(order, (value, key))
            self.settle()
        return self

    def in_order(self) -> Iterator[tuple[int, ActivationKey]]:
        """Every instant with its key, the earliest first; lazily.

        What the draft removes or adds meanwhile is not noticed.
        """
        draft = dict(self._draft)
        late = sorted((value, key) for key, value in draft.items() if isinstance(value, int))
        at = 0
        for entry in self._order:
            if entry[1] in draft:
                continue
            while at < len(late) and late[at] < entry:
                yield late[at]
                at += 1
            yield entry
        yield from late[at:]
