"""What a YAML source costs, found out before anything is built from it.

One pass over libyaml's events that keeps three numbers: events with every alias expanded, depth,
and for each anchored list or mapping what one alias of it adds to both. It ends at the first event
over budget or at the first syntax error.
"""

from typing import Any, Final

from yaml import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    MarkedYAMLError,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    YAMLError,
)
from yaml._yaml import CParser

from tallystick.core.diagnostics import NOWHERE, Place, Problems
from tallystick.core.source import (
    DEPTH_MAX,
    EVENTS_MAX,
    EXPANDED_BYTES_MAX,
    EXPANDS,
    EXPANDS_REMEDY,
)

_Event = Any  # PyYAML's stubs describe its Python parser; libyaml's events always have marks

_STARTS: Final = (SequenceStartEvent, MappingStartEvent)
_ENDS: Final = (SequenceEndEvent, MappingEndEvent)

_QUOTED: Final = frozenset("@`%*&!,]}|>")
"""What a plain scalar must not begin with, of what people write by mistake."""


def within_budgets(text: str, problems: Problems) -> bool:
    """Return whether the source is YAML, of at most 150,000 events and 64 levels.

    If it is not, one problem is added that says where the budget ended or the syntax broke.
    """
    try:
        return _count(CParser(text), problems)
    except YAMLError as error:
        _add_syntax(text, error, problems)
        return False


def _count(parser: CParser, problems: Problems) -> bool:
    # Most events are scalars: they take the first branch, and everything is a local variable.
    next_event = parser.get_event
    costs: dict[str, tuple[int, int]] = {}  # anchor: events, height
    open_nodes: list[tuple[str | None, int, int]] = []  # anchor, events before, deepest before
    texts: dict[str, int] = {}  # anchor of a long scalar: its length
    events = depth = deepest = repeated = 0
    while True:
        event: _Event = next_event()
        kind = type(event)
        events += 1
        if kind is ScalarEvent:
            if event.anchor is not None:
                texts[event.anchor] = len(event.value)
        elif kind in _STARTS:
            open_nodes.append((event.anchor, events, deepest))
            depth += 1
            deepest = depth
        elif kind in _ENDS:
            depth -= 1
            anchor, events_before, deepest_before = open_nodes.pop()
            if anchor is not None:
                costs[anchor] = events - events_before + 1, deepest - depth
            deepest = max(deepest, deepest_before)
        elif kind is AliasEvent:
            cost, height = costs.get(event.anchor, (1, 0))
            events += cost - 1
            deepest = max(deepest, depth + height)
            repeated += texts.get(event.anchor, 0)
            if repeated > EXPANDED_BYTES_MAX:
                problems.add("source-expands", NOWHERE, EXPANDS, remedy=EXPANDS_REMEDY)
                return False
        elif kind is StreamEndEvent:
            return True
        if events > EVENTS_MAX or deepest > DEPTH_MAX:
            _add_excess(event, events > EVENTS_MAX, problems)
            return False


def _add_excess(event: _Event, too_many: bool, problems: Problems) -> None:
    place = Place(event.start_mark.line + 1, event.start_mark.column + 1)
    if too_many:
        problems.add(
            "yaml-too-many-nodes",
            place,
            f"the source expands to more than {EVENTS_MAX:,} nodes (aliases count each time)",
            remedy="move data into the run's input, or use a map step",
        )
    else:
        problems.add("yaml-too-deep", place, f"nested more than {DEPTH_MAX} levels deep")


def _add_syntax(text: str, error: YAMLError, problems: Problems) -> None:
    mark: Any = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    if not isinstance(error, MarkedYAMLError) or mark is None:
        problems.add("yaml-syntax", NOWHERE, "the text is not YAML")
        return
    problems.add(
        "yaml-syntax",
        Place(mark.line + 1, mark.column + 1),
        ", ".join(part for part in (error.problem, error.context) if part),
        remedy=_syntax_remedy(text, mark.line, mark.index),
    )


def _syntax_remedy(text: str, line: int, index: int) -> str | None:
    at = text[index : index + 1]
    lines = text.split("\n", line + 1)
    if at == "\t":
        return "indent with spaces, not with tabs"
    if line < len(lines) and "${{" in lines[line]:
        return 'put the expression in quotes: "${{ … }}"'
    if at == ":":
        return 'put a text that holds ": " in quotes'
    if at in _QUOTED:
        return f"put a text that begins with {at} in quotes"
    return None
