"""YAML 1.2, read strictly and within budgets.

libyaml's parser gives a stream of events; the tree is built here, so that nothing is resolved,
merged, constructed or dropped by somebody else's rules:

- Plain scalars follow the YAML 1.2 core schema. `on`, `off`, `yes`, `no`, `y`, `n` are strings, and
  so are dates and `1_000`.
- A key is a string and stands once. `<<` merges mappings; the mapping's own key wins over a merged
  one, and a key that two merged mappings bring is refused, because either choice would hide one.
- No tags, no directives, one document, no NaN and no infinity.
- An alias counts as all the events that it stands for, and is as deep as they are.

The source is parsed twice: the first time only to count, so that a hostile source costs a fraction
of a second and no memory, and nothing is built that is not within its budgets.

Directives are refused before parsing: libyaml compares each with all before it, and 100,000 of them
take it 24 seconds.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, Final

from yaml import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)
from yaml._yaml import CParser

from tallystick.core.diagnostics import NOWHERE, Place, Problems, Related
from tallystick.core.pointer import quote
from tallystick.core.source import (
    Entry,
    Located,
    Mapping,
    Scalar,
    Sequence,
    add_forbidden,
    as_text,
    kind,
    place_of,
)
from tallystick.core.values import INTEGER_DIGITS_MAX
from tallystick.core.yaml_budget import within_budgets

_Event = Any  # PyYAML's stubs describe its Python parser; libyaml's events always have marks

_DIRECTIVE: Final = re.compile(r"(?:\A|[\n\r])%")
_OLD_BREAK: Final = re.compile("[\x85\u2028\u2029]")
"""Line breaks to libyaml, which here still follows YAML 1.1, and text in YAML 1.2."""

_SPECIAL_FIRST: Final = frozenset("~nNtTfF+-.0123456789")
"""What a plain scalar begins with if it may be anything but a string."""

_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
"""Source: YAML 1.2.2 §10.3.2, as are the three patterns."""

_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

_INTEGER_BOUND: Final = 10**INTEGER_DIGITS_MAX


def read_yaml(data: bytes | str, problems: Problems) -> Located | None:
    """Read one YAML document into a located tree.

    Every problem is added to `problems`. Where reading could go on after one (a duplicate key keeps
    its first value), the tree is returned all the same, so that a compiler can look for more; it
    must not be used otherwise. None when there is no tree.
    """
    text = as_text(data, problems)
    if text is None:
        return None
    if not _well_behaved(text, problems) or not within_budgets(text, problems):
        return None
    return _Reader(text, problems).document()


def _well_behaved(text: str, problems: Problems) -> bool:
    """Refuse what libyaml reads slowly or otherwise than YAML 1.2 says."""
    if directive := _DIRECTIVE.search(text):
        problems.add(
            "yaml-directive",
            place_of(text[: directive.end() - 1]),
            "a line that begins with % is a YAML directive",
            remedy="remove it, or indent the line if it belongs to a text",
        )
    elif old := _OLD_BREAK.search(text):
        add_forbidden(text, old.start(), problems)
    else:
        return True
    return False


class _Reader:
    """Builds the tree of a source that is within its budgets and free of syntax errors."""

    def __init__(self, text: str, problems: Problems) -> None:
        self._problems = problems
        self._parser = CParser(text)
        self._anchors: dict[str, Located | None] = {}  # None while the node is being read

    def document(self) -> Located | None:
        self._expect(StreamStartEvent)
        first = self._next()
        if type(first) is StreamEndEvent:
            self._problems.add("yaml-empty", NOWHERE, "the source holds no document")
            return None
        assert type(first) is DocumentStartEvent
        root = self._node(self._next())
        self._expect(DocumentEndEvent)
        after = self._next()
        if type(after) is not StreamEndEvent:
            self._problems.add(
                "yaml-multiple-documents",
                _place(after),
                "a second document begins here",
                remedy="put each workflow into a file of its own",
            )
        return root

    def _next(self) -> _Event:
        return self._parser.get_event()

    def _expect(self, kind_of_event: type[_Event]) -> None:
        event = self._next()
        assert type(event) is kind_of_event

    # Nodes.

    def _node(self, event: _Event) -> Located:
        if type(event) is AliasEvent:
            return self._alias(event)
        if event.tag is not None:
            self._problems.add(
                "yaml-tag",
                _place(event),
                "a YAML tag",
                remedy="remove the tag; put the value in quotes to make it a string",
            )
        if event.anchor is not None:
            return self._anchored(event)
        return self._content(event)

    def _content(self, event: _Event) -> Located:
        if type(event) is ScalarEvent:
            return self._scalar(event)
        if type(event) is SequenceStartEvent:
            return self._sequence(event)
        assert type(event) is MappingStartEvent
        return self._mapping(event)

    def _sequence(self, start: _Event) -> Sequence:
        items = []
        while type(event := self._next()) is not SequenceEndEvent:
            items.append(self._node(event))
        mark = start.start_mark
        return Sequence(mark.line + 1, mark.column + 1, tuple(items))

    def _scalar(self, event: _Event) -> Scalar:
        mark = event.start_mark
        text: str = event.value
        if not event.implicit[0] or (text and text[0] not in _SPECIAL_FIRST):
            return Scalar(mark.line + 1, mark.column + 1, text)
        return Scalar(mark.line + 1, mark.column + 1, self._resolve(text, event))

    def _resolve(self, text: str, event: _Event) -> bool | int | float | str | None:
        """Give a plain scalar its type, by the YAML 1.2 core schema."""
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            return self._number(event, _integer(text), "an integer of more than 4,300 digits")
        if _FLOAT.fullmatch(text):
            value = float(text)
            finite = value if math.isfinite(value) else None
            return self._number(event, finite, "a float beyond 1.8e308")
        if _NOT_FINITE.fullmatch(text):
            return self._number(event, None, "NaN and infinities are not JSON")
        return text

    def _number(self, event: _Event, number: float | None, message: str) -> float | None:
        if number is None:
            self._problems.add(
                "yaml-number", _place(event), message, remedy="put it in quotes to make it a string"
            )
        return number

    # Aliases.

    def _anchored(self, event: _Event) -> Located:
        # An anchor may be given again; later aliases mean the newer one (YAML 1.2.2 §3.2.2.2).
        self._anchors[event.anchor] = None
        node = self._anchors[event.anchor] = self._content(event)
        return node

    def _alias(self, event: _Event) -> Located:
        name = event.anchor
        node = self._anchors.get(name)
        if node is not None:
            return node
        code, message = (
            ("yaml-alias-cycle", f"this alias is inside the node {quote(name)} itself")
            if name in self._anchors
            else ("yaml-unknown-alias", f"no anchor {quote(name)} comes before this alias")
        )
        self._problems.add(code, _place(event), message)
        mark = event.start_mark
        return Scalar(mark.line + 1, mark.column + 1, None)

    # Mappings.

    def _mapping(self, start: _Event) -> Mapping:
        own: dict[str, Entry] = {}
        merge: tuple[Place, Located] | None = None
        while type(event := self._next()) is not MappingEndEvent:
            if _is_merge(event):
                place = _place(event)
                value = self._node(self._next())
                if merge is None:
                    merge = place, value
                else:
                    self._duplicate("<<", place, merge[0])
            else:
                self._pair(event, own)
        if merge is not None:
            self._merge(own, *merge)
        mark = start.start_mark
        return Mapping(mark.line + 1, mark.column + 1, own)

    def _pair(self, event: _Event, own: dict[str, Entry]) -> None:
        key = self._key(event)
        value = self._node(self._next())
        mark = event.start_mark
        if key is None:
            return
        if (first := own.get(key)) is not None:
            self._duplicate(key, _place(event), first.place)
            return
        own[key] = Entry(mark.line + 1, mark.column + 1, value)

    def _key(self, event: _Event) -> str | None:
        """Return the key; None, and a problem, when it is not a string."""
        node = self._node(event)
        if isinstance(node, Scalar) and isinstance(node.value, str):
            return node.value
        written = event.value if type(event) is ScalarEvent else ""
        self._problems.add(
            "yaml-key-not-string",
            _place(event),
            f"a key of type {kind(node)}; keys are strings",
            remedy=f"put it in quotes: {quote(written)}" if written else "write a string here",
        )
        return None

    def _duplicate(self, key: str, place: Place, first: Place) -> None:
        self._problems.add(
            "yaml-duplicate-key",
            place,
            f"the key {quote(key)} stands on line {first.line} already",
            remedy="keep one of the two",
            related=(Related(first, "first written here"),),
        )

    def _merge(self, own: dict[str, Entry], place: Place, value: Located) -> None:
        """Add the merged entries to a mapping's own, which win."""
        brought: dict[str, Entry] = {}
        for mapping in self._merged(place, value):
            for key, entry in mapping.entries.items():
                if key in own:
                    continue
                if (other := brought.get(key)) is not None:
                    self._conflict(key, place, other, entry)
                else:
                    brought[key] = entry
        own.update(brought)

    def _merged(self, place: Place, value: Located) -> Iterator[Mapping]:
        for item in value.items if isinstance(value, Sequence) else (value,):
            if isinstance(item, Mapping):
                yield item
            else:
                self._problems.add(
                    "yaml-merge-value",
                    place,
                    f"<< merges a mapping or a list of mappings, not {kind(item)}",
                    remedy='put << in quotes if it is meant as a key: "<<"',
                )

    def _conflict(self, key: str, place: Place, one: Entry, other: Entry) -> None:
        self._problems.add(
            "yaml-merge-conflict",
            place,
            f"two merged mappings bring the key {quote(key)}, "
            f"from line {one.line} and from line {other.line}",
            remedy="write the key in this mapping itself",
            related=(
                Related(one.place, "brought from here"),
                Related(other.place, "and from here"),
            ),
        )


def _is_merge(event: _Event) -> bool:
    return type(event) is ScalarEvent and event.value == "<<" and bool(event.implicit[0])


def _integer(text: str) -> int | None:
    """Return the integer; None when it has more digits than a value may have."""
    if text[:2] in {"0o", "0x"}:
        # A power of two as base costs linear time, whatever the length.
        number = int(text[2:], 8 if text[1] == "o" else 16)
        return number if number < _INTEGER_BOUND else None
    digits = text.lstrip("+-").lstrip("0") or "0"
    if len(digits) > INTEGER_DIGITS_MAX:
        return None
    return -int(digits) if text[0] == "-" else int(digits)


def _place(event: _Event) -> Place:
    mark = event.start_mark
    return Place(mark.line + 1, mark.column + 1)
