"""The measure of an evaluation is never below what it gives."""

from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tallystick.core.cel_bounds import (
    COST_MAX,
    TooCostly,
    _constant,
    _Known,
    _measure,
    _size,
    check_cost,
    needs_bounds,
)
from tallystick.core.cel_library import NotCompiled, compile_checked, run
from tallystick.core.expression_values import Unusable

DATA: dict[str, Any] = {
    "l": ["ab", "c", "", "defgh"],
    "m": [["ab", "c"], [], ["x", "yy", "zzzzzzz"]],
    "o": {"k": ["p", "q"], "long": "v" * 50, "n": {"k": ["r"] * 9}},
    "s": "some text",
}
VARIABLES = dict.fromkeys(DATA, "dyn")

NAMED = ["l", "m", "o.k", "o.n.k", "m[0]", "m[2]", "o['k']", "[l, m[2]]"]
SCALARS = ["s", "i", "j", "o", "o.long", "l", "{'k': l, 'z': s}", "{'k': i}.k", "1"]


def a_list(random: Random, depth: int) -> str:
    """Write an expression that is a list, mostly."""
    if depth == 0:
        return random.choice(NAMED)
    one, other = a_list(random, depth - 1), a_list(random, depth - 1)
    part = a_part(random, depth - 1)
    forms = [
        f"({one} + {other})",
        f"{one}.map(i, {part})",
        f"{one}.map(j, {part})",
        f"{one}.filter(i, i != s)",
        f"(size(s) > 3 ? {one} : {other})",
        f"[{part}, {a_part(random, depth - 1)}]",
    ]
    return random.choice(forms)


def a_part(random: Random, depth: int) -> str:
    """Write an expression of any type."""
    if depth == 0:
        return random.choice(SCALARS)
    one, other = a_part(random, depth - 1), a_part(random, depth - 1)
    forms = [f"(dyn({one}) + dyn({other}))", f"dyn({one})[0]", a_list(random, depth - 1)]
    return random.choice(forms)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_a_result_is_never_larger_than_measured(seed: int, depth: int) -> None:
    source = a_list(Random(seed), depth)
    names = {**VARIABLES, "i": "dyn", "j": "dyn"}
    values = {**DATA, "i": "free", "j": ["free"]}
    try:
        compiled = compile_checked(source, names)
        known = {name: _Known(_constant(_size(item)), (item,)) for name, item in values.items()}
        measured = _measure(compiled.tree, known)
        check_cost(compiled.tree, values)
        result = run(compiled, values)
    except (NotCompiled, Unusable, TooCostly):
        assume(False)
        return
    assert _size(result) <= measured.size[None]
    assert _size(result) <= 2 * measured.cost.get(None, 0) + _size(values)


def measure(source: str, **values: Any) -> None:
    compiled = compile_checked(source, dict.fromkeys(values, "dyn"))
    assert needs_bounds(compiled.tree)
    check_cost(compiled.tree, values)


ITEMS = [{"id": f"o-{n}", "note": "n" * 20, "lines": [1, 2, 3]} for n in range(400)]


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("x.map(o, o.id)", {"x": ITEMS}),
        ("x.map(o, {'id': o.id, 'text': o.note + o.id, 'n': size(o.lines)})", {"x": ITEMS}),
        ("x.filter(o, o.id.endsWith('7')).map(o, o.lines.map(n, n * 2))", {"x": ITEMS}),
        ("x.all(o, o.id.matches('^[a-z]+-[0-9]{1,4}$'))", {"x": ITEMS}),
        ("l.all(i, i in l)", {"l": list(range(1_000))}),
        ("x.all(k, x[k].n >= 0)", {"x": {f"k{n}": {"n": n} for n in range(1_000)}}),
        ("l.exists(i, s.contains(string(i)))", {"l": list(range(1_000)), "s": "a" * 60_000}),
        ("l.map(i, string(l[0]) + string(i))", {"l": list(range(1_000))}),
    ],
)
def test_ordinary_loops_are_within_bounds(source: str, values: Any) -> None:
    measure(source, **values)


@pytest.mark.parametrize("times", [10, 20, 28])
def test_doubling_is_refused_before_it_begins(times: int) -> None:
    with pytest.raises(TooCostly):
        measure("[l]" + ".map(a, a + a)" * times, l=list(range(1_000)) * (30 if times < 20 else 1))


def test_forms_do_not_overflow() -> None:
    with pytest.raises(TooCostly):
        measure("l" + ".map(a, [a, a, a, a])" * 25, l=[1] * 1_000)
    assert COST_MAX < 2**31
