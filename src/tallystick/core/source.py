"""The tree that every source format is read into.

YAML, and later JSON and TOML, give the same tree: JSON values that know where they were written.
The compiler walks it and can say file, line and column of everything, keys included. Nodes are
immutable, so an alias shares the node of its anchor and expands to nothing in memory; whoever walks
the tree meets it once for each alias, which is why readers count *expanded* nodes.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tallystick.core.diagnostics import NOWHERE, Place, Problems
from tallystick.core.pointer import Path
from tallystick.core.values import DEPTH_MAX as VALUE_DEPTH_MAX
from tallystick.core.values import Value

BYTES_MAX: Final = 2 * 1024 * 1024
EVENTS_MAX: Final = 150_000
EXPANDED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Text with every alias expanded: an alias of a long text costs as much as the text."""

EXPANDS: Final = "the source is larger than 8 MiB with its aliases expanded"
EXPANDS_REMEDY: Final = "move data into the run's input"
"""Events of a source with every alias expanded: one for a scalar, two for a list or mapping."""

DEPTH_MAX: Final = VALUE_DEPTH_MAX

_FORBIDDEN: Final = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)
"""Source: YAML 1.2.2 §5.1, the printable characters."""


class Node(msgspec.Struct, frozen=True, gc=False):
    """A value and where it begins: line and column, counted from 1."""

    line: int
    column: int

    @property
    def place(self) -> Place:
        """Where the node begins."""
        return Place(self.line, self.column)


class Scalar(Node, frozen=True, gc=False):
    """None, a boolean, a number or a string."""

    value: bool | int | float | str | None


class Sequence(Node, frozen=True, gc=False):
    """A list."""

    items: tuple[Located, ...]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """What a key of a mapping leads to, and where the key was written."""

    line: int
    column: int
    node: Located

    @property
    def place(self) -> Place:
        """Where the key begins. A merged key says where it was first written."""
        return Place(self.line, self.column)


class Mapping(Node, frozen=True, gc=False):
    """Keys in the order written; merged keys follow the mapping's own."""

    entries: dict[str, Entry]


Located = Scalar | Sequence | Mapping


def plain(node: Located) -> Value:
    """Return the value without its places. Shared nodes become separate values."""
    match node:
        case Scalar():
            return node.value
        case Sequence():
            return [plain(item) for item in node.items]
        case Mapping():
            return {key: plain(entry.node) for key, entry in node.entries.items()}


def place_at(node: Located, path: Path) -> Place:
    """Return where the part of a node under `path` is written; for a key, where the key begins.

    Where the path leads out of the tree, the place of the last part that exists.
    """
    place = node.place
    for key in path:
        if isinstance(node, Mapping) and isinstance(key, str) and key in node.entries:
            entry = node.entries[key]
            place, node = entry.place, entry.node
        elif isinstance(node, Sequence) and isinstance(key, int) and key < len(node.items):
            node = node.items[key]
            place = node.place
        else:
            break
    return place


def kind(node: Located) -> str:
    """Name the type of a node in the words of JSON: `null`, `boolean`, … `array`, `object`."""
    match node:
        case Sequence():
            return "array"
        case Mapping():
            return "object"
        case Scalar(value=None):
            return "null"
        case Scalar(value=bool()):
            return "boolean"
        case Scalar(value=int()):
            return "integer"
        case Scalar(value=float()):
            return "number"
        case Scalar():
            return "string"


def as_text(data: bytes | str, problems: Problems) -> str | None:
    """Return the text of a source without its byte order mark; None after adding a problem.

    A source is UTF-8, at most 2 MiB, and has no control characters but tab and line ends.
    """
    if len(data) > BYTES_MAX or (isinstance(data, str) and _utf8_size(data) > BYTES_MAX):
        problems.add(
            "source-too-large",
            NOWHERE,
            f"the source is larger than {BYTES_MAX // 1024 // 1024} MiB",
            remedy="move data into the run's input",
        )
        return None
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8") if isinstance(data, bytes) else ""
        problems.add("source-encoding", place_of(before), "the source is not UTF-8 here")
        return None
    if bad := _FORBIDDEN.search(text):
        add_forbidden(text, bad.start(), problems)
        return None
    return text.removeprefix("\ufeff")


def add_forbidden(text: str, index: int, problems: Problems) -> None:
    """Add the problem that the character at `index` may not stand in a source."""
    problems.add(
        "source-encoding",
        place_of(text[:index]),
        f"the character U+{ord(text[index]):04X} may not stand in a source",
        remedy="in a quoted string, write it as an escape",
    )


def place_of(before: str) -> Place:
    """Return the place that follows the text `before`."""
    line_start = before.rfind("\n") + 1
    return Place(before.count("\n") + 1, len(before) - line_start + 1)


def _utf8_size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
