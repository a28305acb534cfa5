"""A map that grows without being copied: a large settled layer below, a small draft above.

A transition works on a *fork*, which shares the settled layer and writes only to its own draft. If
the transition is committed, `settle` folds the draft into the shared layer, and the map it was
forked from must not be used any more. If it is not, the fork is dropped and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Gone:
    """Marks a key that the draft removed."""


_GONE: Final = _Gone()


class Layered(Generic[K, V]):
    """See the module's text. Iteration is in order of first insertion, the settled layer first."""

    __slots__ = ("_below", "_draft", "_size")

    def __init__(self) -> None:
        self._below: dict[K, V] = {}
        self._draft: dict[K, V | _Gone] = {}
        self._size = 0

    def fork(self) -> Layered[K, V]:
        """A draft over the same settled layer. Only a settled map may be forked."""
        assert not self._draft, "fork of a map with an unsettled draft"
        fork: Layered[K, V] = Layered.__new__(Layered)
        fork._below = self._below
        fork._draft = {}
        fork._size = self._size
        return fork

    def settle(self) -> None:
        """Fold the draft into the settled layer."""
        if self._draft:
            below = self._below
            for key, value in self._draft.items():
                if isinstance(value, _Gone):
                    below.pop(key, None)
                else:
                    below[key] = value
            self._draft = {}

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
