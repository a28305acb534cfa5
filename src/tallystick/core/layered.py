"""A map that grows without being copied for each change.

A transition works on a *fork*. If it is committed, `settle` gives the map to keep, and the map
that it was forked from must not be used any more. If it is not, the fork is dropped, and nothing
has changed.

    small   the fork is a copy: copying a few entries costs less than looking in two places
    large   the fork is an `Overlay`: a draft over the settled map, into which it is folded
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

COPIED_MAX = 32
"""A map of so many entries is copied for a fork. Measured: an overlay costs as much as that."""


class _Gone:
    """Marks a key that the draft removed."""


_GONE: Final = _Gone()


class Layered(dict[K, V]):
    """A settled map, or a small fork of one. Values are never None."""

    __slots__ = ()

    def fork(self) -> Layered[K, V] | Overlay[K, V]:
        """A map to change that leaves this one as it is."""
        return Layered(self) if len(self) <= COPIED_MAX else Overlay(self)

    def settle(self) -> Layered[K, V]:
        """The map to keep: this one."""
        return self

    def remove(self, key: K) -> None:
        """Remove a key; one that is not there is ignored."""
        self.pop(key, None)


class Overlay(Generic[K, V]):
    """A draft over a settled map that is too large to copy. Iteration: the settled map first."""

    __slots__ = ("_below", "_draft", "_size")

    def __init__(self, below: Layered[K, V]) -> None:
        self._below = below
        self._draft: dict[K, V | _Gone] = {}
        self._size = len(below)

    def fork(self) -> Overlay[K, V]:
        """A draft over the same settled map. Only one without changes may be forked."""
        assert not self._draft, "fork of a map with an unsettled draft"
        return Overlay(self._below)

    def settle(self) -> Layered[K, V]:
        """Fold the draft into the settled map and give that."""
        below = self._below
        for key, value in self._draft.items():
            if isinstance(value, _Gone):
                below.pop(key, None)
            else:
                below[key] = value
        self._draft = {}
        return below

    def get(self, key: K) -> V | None:
        """The value, or None."""
        if self._draft:
            value = self._draft.get(key)
            if value is not None:
                return None if isinstance(value, _Gone) else value
        return self._below.get(key)

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        draft = self._draft
        was = draft.get(key)
        if was is _GONE or (was is None and key not in self._below):
            self._size += 1
        draft[key] = value

    def remove(self, key: K) -> None:
        """Remove a key; one that is not there is ignored."""
        was = self._draft.get(key)
        if was is _GONE:
            return
        if key in self._below:
            self._draft[key] = _GONE
        elif was is not None:
            del self._draft[key]
        else:
            return
        self._size -= 1

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return self._size

    def keys(self) -> Iterator[K]:
        """Every key, lazily, in the order of `items`."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V]:
        """Every value, lazily, in the order of `items`."""
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[K, V]]:
        """Every key with its value. Lazy: taking the first few costs only those."""
        draft = self._draft
        for key, value in self._below.items():
            over = draft.get(key) if draft else None
            if over is None:
                yield key, value
            elif not isinstance(over, _Gone):
                yield key, over
        for key, late in draft.items():
            if key not in self._below and not isinstance(late, _Gone):
                yield key, late


Map: TypeAlias = Layered[K, V] | Overlay[K, V]
"""What a run holds: settled, or forked."""
