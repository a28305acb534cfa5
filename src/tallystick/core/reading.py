"""Values of a located tree, read as the types that the language has at their places.

Each method reads one value. One that does not fit becomes a problem with its place, and None, so
that reading goes on and tells of everything at once. `told` remembers where: the rules of
structure, which see None there, need not tell it again.
"""

import re
from collections.abc import Collection, Iterator
from typing import Final

from tallystick.core.definition import Json, Schema
from tallystick.core.diagnostics import Place, Problems
from tallystick.core.instants import DurationRefused, parse_duration
from tallystick.core.nearest import Nearest
from tallystick.core.pointer import Path, quote
from tallystick.core.source import Located, Mapping, Scalar, Sequence, kind, plain

_AN: Final = frozenset("aeio")
_NUMERAL: Final = re.compile(r"[-+]?[0-9]+")


class Reading:
    """One reading of one tree. Paths are those of the language, for `told`."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._nearest = Nearest()
        self.told: set[Path] = set()

    def tell(
        self, code: str, place: Place, path: Path, message: str, remedy: str | None = None
    ) -> None:
        """Add a problem."""
        self.told.add(path)
        self._problems.add(code, place, message, remedy=remedy)

    def keys(
        self, node: Mapping, path: Path, known: Collection[str], later: Collection[str] = ()
    ) -> None:
        """Tell of every key that the language does not have here, or not yet."""
        for key, entry in node.entries.items():
            if key in known:
                continue
            at = (*path, key)
            if key in later:
                message = f"`{key}` is part of the language, but not of this version"
                self.tell("key-not-yet", entry.place, at, message, "remove it")
            else:
                remedy = self._nearest.remedy(key, known) or f"known are {', '.join(known)}"
                message = f"there is no key {quote(key)} here"
                self.tell("key-unknown", entry.place, at, message, remedy)

    def required(self, node: Mapping, key: str, path: Path, remedy: str) -> bool:
        """Whether a key is there; tell if it is not."""
        if key in node.entries:
            return True
        self.tell("key-missing", node.place, (*path, key), f"`{key}` is missing", remedy)
        return False

    def mapping(self, node: Mapping, key: str, path: Path) -> Mapping | None:
        """Return the mapping under a key; None where there is none."""
        found = self._value(node, key)
        if found is None or isinstance(found, Mapping):
            return found
        self._wrong(node, key, path, "an object")
        return None

    def text(self, node: Mapping, key: str, path: Path) -> str | None:
        """Return the string under a key; None where there is none."""
        found = self._value(node, key)
        if found is None:
            return None
        if isinstance(found, Scalar) and isinstance(found.value, str):
            return found.value
        self._wrong(node, key, path, "a string")
        return None

    def integer(self, node: Mapping, key: str, path: Path) -> int | None:
        """Return the integer under a key; None where there is none. A boolean is none."""
        found = self._value(node, key)
        if found is None:
            return None
        if isinstance(found, Scalar) and type(found.value) is int:
            return found.value
        self._wrong(node, key, path, "an integer")
        return None

    def number(self, node: Mapping, key: str, path: Path) -> float | None:
        """Return the number under a key, as a float; None where there is none."""
        found = self._value(node, key)
        if found is None:
            return None
        if (
            isinstance(found, Scalar)
            and isinstance(found.value, int | float)
            and not isinstance(found.value, bool)
        ):
            try:
                return float(found.value)
            except OverflowError:
                message = f"`{key}` is too large"
                self.tell("out-of-range", node.entries[key].place, (*path, key), message)
                return None
        self._wrong(node, key, path, "a number")
        return None

    def duration(self, node: Mapping, key: str, path: Path) -> int | None:
        """Return the duration under a key, in milliseconds; None where there is none."""
        found = self._value(node, key)
        if found is None:
            return None
        if not (isinstance(found, Scalar) and isinstance(found.value, str)):
            self._wrong(node, key, path, "a duration, such as 90s or 1h30m")
            return None
        try:
            return parse_duration(found.value)
        except DurationRefused as error:
            self.tell("duration-invalid", node.entries[key].place, (*path, key), error.reason)
            return None

    def words(self, node: Mapping, key: str, path: Path) -> tuple[str, ...] | None:
        """Return the strings under a key, one alone as a tuple of one; None where there are none.

        An item of another type is told of and left out.
        """
        found = self._value(node, key)
        if found is None:
            return None
        if isinstance(found, Scalar) and isinstance(found.value, str):
            return (found.value,)
        if not isinstance(found, Sequence):
            self._wrong(node, key, path, "a string or a list of strings")
            return None
        return tuple(self._items(found, (*path, key)))

    def schema(self, node: Mapping, key: str, path: Path) -> Schema | None:
        """Return the schema under a key, unchecked; None where there is none."""
        found = self._value(node, key)
        if found is None:
            return None
        value = plain(found)
        if isinstance(value, dict | bool):
            return value
        self._wrong(node, key, path, "a schema, which is an object")
        return None

    def json(self, node: Mapping, key: str) -> Json:
        """Return any value under a key; None where there is none."""
        found = self._value(node, key)
        return None if found is None else plain(found)

    @staticmethod
    def _value(node: Mapping, key: str) -> Located | None:
        entry = node.entries.get(key)
        return None if entry is None else entry.node

    def _items(self, found: Sequence, path: Path) -> Iterator[str]:
        for at, item in enumerate(found.items):
            if isinstance(item, Scalar) and isinstance(item.value, str):
                yield item.value
            else:
                message = f"an item of `{path[-1]}` is a string, not {_named(item)}"
                self.tell("wrong-type", item.place, (*path, at), message, _remedy(item, "a string"))

    def _wrong(self, node: Mapping, key: str, path: Path, expected: str) -> None:
        entry = node.entries[key]
        message = f"`{key}` is {expected}, not {_named(entry.node)}"
        remedy = _remedy(entry.node, expected)
        self.tell("wrong-type", entry.place, (*path, key), message, remedy)


def _named(node: Located) -> str:
    name = kind(node)
    if name == "null":
        return name
    return f"{'an' if name[0] in _AN else 'a'} {name}"


def _remedy(node: Located, expected: str) -> str | None:
    """Say what to type instead, where that can be guessed from the types alone."""
    value = node.value if isinstance(node, Scalar) else ()
    if value is None:
        return "give it a value, or leave the key out"
    if expected == "a string" and isinstance(value, bool | int | float):
        return "put it in quotes"
    if expected.startswith("a duration") and type(value) in {int, float}:
        return "add the unit: ms, s, m, h or d"
    if expected in {"an integer", "a number"} and isinstance(value, str):
        return "write it without quotes" if _NUMERAL.fullmatch(value) else None
    return None
