"""What an evaluation may cost, known before it begins.

The library bounds nesting (32) and iterations (10,000), but not what one iteration does:
`[l].map(a, a + a)` written 28 times in a row asks for terabytes, and one regular expression may
take seconds. So the tree is measured with the values that it will get: how large each part can
become, and how much work that is.

A size is a linear form, so that a loop costs the sum over its items and not items times the
largest: for `l.map(i, i.name)` the step costs "the size of i", and summed over the loop that is the
size of l.

One unit is about a byte copied or 15 ns. The bound is above the truth, never below it; what just
passes takes up to half a second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from tallystick.core.cel_tree import (
    Call,
    Const,
    Ident,
    ListOf,
    Loop,
    MapOf,
    Select,
    Tree,
    walk,
)
from tallystick.core.regex_size import RegexRefused, regex_size
from tallystick.core.values import Value

COST_MAX: Final = 48 * 1024 * 1024
ITEMS_MAX: Final = 1_000
"""Items of a list that a macro goes over."""

_SCALAR: Final = 16
_CALL: Final = 16
_CANDIDATES_MAX: Final = 4_096
_REGEX_COMPILE: Final = 160
"""What compiling costs for each instruction, as matching text of that size. It is compiled for each
item of a loop anew."""

_REGEX_PACE: Final = 8
"""Sizes of patterns and texts are bounds that are each several times the truth."""

_COMPARING: Final = frozenset({"_==_", "_!=_", "@in"})
"""Calls that compare part by part, at about 30 ns each."""

_READING: Final = frozenset({"contains", "startsWith", "endsWith", "size"})
"""Calls that go over text once, at about a nanosecond for each byte, and give a scalar."""

_FREE: Final = frozenset({"_&&_", "_||_", "!_", "@not_strictly_false", "dyn", "_[_]", "_?_:_"})
"""Calls that look at no content."""


class TooCostly(ValueError):
    """The evaluation may cost too much, or has no defined result. `reason` holds no value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def needs_bounds(tree: Tree) -> bool:
    """Whether the cost of an expression depends on more than the size of its values.

    Without a loop, a regular expression and many concatenations, every value is looked at a few
    times at most, and the values are small.
    """
    concatenations = 0
    for node in walk(tree):
        if isinstance(node, Loop) or (isinstance(node, Call) and node.function == "matches"):
            return True
        concatenations += isinstance(node, Call) and node.function == "_+_"
    return concatenations > 8


def check_patterns(tree: Tree) -> str | None:
    """Say what is wrong with the regular expressions; None when nothing is.

    A pattern is a literal, so that it can be measured, and compiles to at most 2,000 instructions.
    """
    for node in walk(tree):
        if isinstance(node, Call) and node.function == "matches":
            pattern = node.arguments[-1] if node.arguments else None
            if not isinstance(pattern, Const) or not isinstance(pattern.value, str):
                return "the pattern of matches() must be a literal string"
            try:
                regex_size(pattern.value)
            except RegexRefused as error:
                return error.reason
    return None


def check_cost(tree: Tree, values: Mapping[str, Value]) -> None:
    """Measure a tree that will get these values, by the names that its identifiers have.

    Raises `TooCostly` when it may cost too much, when a macro goes over more than 1,000 items, or
    when it makes a list from the keys of an object, whose order the library does not define.
    """
    known = {name: _Known(_constant(_size(value)), (value,)) for name, value in values.items()}
    total = _measure(tree, known).cost
    assert not total.keys() - {None}
    if total.get(None, 0) > COST_MAX:
        raise TooCostly("it may take too long or too much memory with these values")


_Form = dict[str | None, int]
"""A linear form: the coefficient of each loop variable's size, and under None the constant."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A list or object that the expression itself makes: how long at most, and all it may hold."""

    length: int
    held: "tuple[_Candidate, ...]"
    keyed: bool


_Candidate = Value | _Made


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a name: how large it is, and the lists and objects that it may be."""

    size: _Form
    candidates: tuple[_Candidate, ...]


@dataclass(frozen=True, slots=True)
class _Measure:
    """What evaluating a tree gives, and the cost of getting there. See `_Known`."""

    size: _Form
    cost: _Form
    candidates: tuple[_Candidate, ...] = ()


def _constant(units: int) -> _Form:
    return {None: units}


def _sum(*forms: _Form) -> _Form:
    total: _Form = {}
    for form in forms:
        for name, count in form.items():
            total[name] = min(total.get(name, 0) + count, COST_MAX + 1)
    return total


def _over_sixteen(form: _Form) -> _Form:
    return {name: count // _SCALAR + 1 for name, count in form.items()}


def _larger(one: _Form, other: _Form) -> _Form:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one.keys() | other.keys()}


def _times(form: _Form, factor: int) -> _Form:
    return {name: min(count * factor, COST_MAX + 1) for name, count in form.items()}


def _size(value: Value) -> int:
    match value:
        case str():
            return _SCALAR + 4 * len(value)
        case list():
            return _SCALAR + sum(map(_size, value))
        case dict():
            return _SCALAR + sum(
                _SCALAR + 4 * len(key) + _size(item) for key, item in value.items()
            )
        case _:
            return _SCALAR


def _measure(tree: Tree, known: Mapping[str, _Known]) -> _Measure:
    match tree:
        case Const():
            text = tree.value if isinstance(tree.value, (str, bytes)) else ""
            return _Measure(_constant(_SCALAR + 4 * len(text)), {})
        case Ident():
            name = known.get(tree.name)
            return (
                _Measure(name.size, {}, name.candidates)
                if name
                else _Measure(_constant(_SCALAR), {})
            )
        case Select():
            return _select(tree, known)
        case Call():
            return _call(tree, known)
        case ListOf():
            return _container([_measure(item, known) for item in tree.items], keyed=False)
        case MapOf():
            inside = (*tree.keys, *tree.values)
            return _container([_measure(part, known) for part in inside], keyed=True)
        case Loop():
            return _loop(tree, known)
        case _:
            assert_never(tree)


def _container(parts: Sequence[_Measure], *, keyed: bool) -> _Measure:
    size = _sum(_constant(_SCALAR), *(part.size for part in parts))
    held = _few([item for part in parts for item in part.candidates])
    made = _Made(len(parts), held, keyed)
    return _Measure(size, _sum(size, *(part.cost for part in parts)), (made,))


def _length(candidate: _Candidate) -> int:
    match candidate:
        case _Made():
            return candidate.length
        case list() | dict():
            return len(candidate)
        case _:
            return 0


def _is_keyed(candidate: _Candidate) -> bool:
    return isinstance(candidate, dict) or (isinstance(candidate, _Made) and candidate.keyed)


def _held(candidates: Sequence[_Candidate]) -> tuple[_Candidate, ...]:
    found: list[_Candidate] = []
    for item in candidates:
        if isinstance(item, _Made):
            found.extend(item.held)
        elif isinstance(item, list):
            found.extend(item)
        elif isinstance(item, dict):
            found.extend(item.values())
    return _few(found)


def _few(items: Sequence[_Candidate]) -> tuple[_Candidate, ...]:
    few = tuple(item for item in items if isinstance(item, (list, dict, _Made)))
    if len(few) > _CANDIDATES_MAX:
        raise TooCostly("it looks at too many lists and objects")
    return few


def _select(tree: Select, known: Mapping[str, _Known]) -> _Measure:
    operand = _measure(tree.operand, known)
    if tree.tested:
        return _Measure(_constant(_SCALAR), operand.cost)
    found = [
        item[tree.field]
        for item in operand.candidates
        if isinstance(item, dict) and tree.field in item
    ]
    made = [item for item in operand.candidates if isinstance(item, _Made)]
    return _Measure(_part_size(operand), operand.cost, _few([*found, *_held(made)]))


def _part_size(operand: _Measure) -> _Form:
    """Bound the size of one part: of data outside loops by its largest part, else by the whole."""
    data = [item for item in operand.candidates if isinstance(item, (list, dict))]
    if operand.size.keys() - {None} or len(data) < len(operand.candidates):
        return operand.size
    parts = (part for item in data for part in (item.values() if isinstance(item, dict) else item))
    return _constant(max(map(_size, parts), default=_SCALAR))


def _call(tree: Call, known: Mapping[str, _Known]) -> _Measure:
    arguments = ((tree.target,) if tree.target is not None else ()) + tree.arguments
    parts = [_measure(argument, known) for argument in arguments]
    cost = _sum(_constant(_CALL), *(part.cost for part in parts))
    if tree.function == "_?_:_":
        one, other = parts[1], parts[2]
        return _Measure(
            _larger(one.size, other.size), cost, _few([*one.candidates, *other.candidates])
        )
    if tree.function == "_[_]":
        return _Measure(_part_size(parts[0]), cost, _held(parts[0].candidates))
    size = _sum(_constant(_SCALAR), *(part.size for part in parts))
    if tree.function == "matches":
        cost = _sum(cost, _matching(tree, parts[0].size))
    elif tree.function in _COMPARING:
        return _Measure(_constant(_SCALAR), _sum(cost, size, size))
    elif tree.function in _READING:
        return _Measure(_constant(_SCALAR), _sum(cost, _over_sixteen(size)))
    elif tree.function not in _FREE:
        cost = _sum(cost, size)
    candidates = parts[0].candidates if tree.function == "dyn" else ()
    if tree.function == "_+_":
        candidates = _joined(parts)
    return _Measure(size, cost, candidates)


def _matching(tree: Call, text: _Form) -> _Form:
    pattern = tree.arguments[-1]
    assert isinstance(pattern, Const)
    assert isinstance(pattern.value, str)
    instructions = max(1, regex_size(pattern.value) // _REGEX_PACE)
    return _times(_sum(text, _constant(_REGEX_COMPILE)), instructions)


def _joined(parts: Sequence[_Measure]) -> tuple[_Candidate, ...]:
    """Return the one list that stands for a concatenation."""
    length = sum(max(map(_length, part.candidates), default=0) for part in parts)
    held = _held([item for part in parts for item in part.candidates])
    return (_Made(length, held, keyed=False),)


def _loop(tree: Loop, known: Mapping[str, _Known]) -> _Measure:
    source = _measure(tree.range, known)
    count = max(map(_length, source.candidates), default=0)
    _check_range(source.candidates, count, makes_list=isinstance(tree.start, ListOf))
    lists = [item for item in source.candidates if not _is_keyed(item)]
    inside = dict(known)
    item = f"#{len(known)}"  # deeper loops know more names, so it is unique on the way down
    inside[tree.names[0]] = _Known({item: 1}, _held(lists))
    for name in tree.names[1:]:
        inside[name] = _Known({item: 1}, _held(source.candidates))
    inside[tree.result_name] = _Known({}, ())
    condition, step = _measure(tree.condition, inside), _measure(tree.step, inside)
    once = _sum(_constant(_CALL), condition.cost, step.cost)
    size = _sum(_constant(_SCALAR), _over(step.size, item, count, source.size))
    cost = _sum(source.cost, _over(once, item, count, source.size), size)
    if not isinstance(tree.start, ListOf):
        return _Measure(_constant(_SCALAR), cost)
    return _Measure(size, cost, (_Made(count, _held(step.candidates), keyed=False),))


def _check_range(candidates: Sequence[_Candidate], count: int, *, makes_list: bool) -> None:
    if count > ITEMS_MAX:
        raise TooCostly(f"a macro goes over at most {ITEMS_MAX:,} items")
    if makes_list and any(_is_keyed(item) and _length(item) > 1 for item in candidates):
        raise TooCostly("the keys of an object have no order, so no list can be made from them")


def _over(form: _Form, item: str, count: int, source: _Form) -> _Form:
    """Sum a form over the items of a loop, whose sizes together are the size of its source."""
    others = {name: units for name, units in form.items() if name != item}
    return _sum(_times(others, count), _times(source, form.get(item, 0)))
