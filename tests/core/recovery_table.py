"""Print `docs/recovery-table.md` from the code: `python -m tests.core.recovery_table`.

The table is total over thousands of situations. It is printed as the shortest list of conditions
that gives the same verdicts: what changes nothing is left out, and classes whose lists are equal
share one.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final

from tallystick.core.definition import EFFECTS
from tallystick.core.recovery import ENDS, Situation, Verdict, between, judge, situations

HEAD: Final = """\
# What follows when a dispatch ends

Printed from `tallystick.core.recovery` by `python -m tests.core.recovery_table`; a test compares
the two. For each end of a dispatch and each effect class the first line whose condition holds says
what happens. What changes nothing is left out, and so are situations that no run can reach.

- *stop*: the deadline or a cancel request is recorded
- *permitted*: the dispatch is the one that a person permitted for an attempt in doubt
- *earlier unknown*, *earlier failed*, *none began*: the worst that is known of the attempt's
  earlier dispatches
- *closing*: a step has failed the run, or `fail` or `succeed` was reached
- *named*: the retry policy names this kind of failure
- *tries left*: the bound that this end counts against is not reached
- *assumed*: the step says `on_unknown: assume_failed`
"""

QUESTIONS: Final[tuple[tuple[str, tuple[tuple[Any, str], ...]], ...]] = (
    ("stop", ((True, "stop"), (False, "no stop"))),
    ("permitted", ((True, "permitted"), (False, "not permitted"))),
    (
        "earlier",
        (("unknown", "earlier unknown"), ("failed", "earlier failed"), ("nothing", "none began")),
    ),
    ("assume", ((True, "assumed"), (False, "not assumed"))),
    ("closing", ((True, "closing"), (False, "not closing"))),
    ("named", ((True, "named"), (False, "not named"))),
    ("left", ((True, "tries left"), (False, "no tries left"))),
)

TEXTS: Final = {text: (name, value) for name, answers in QUESTIONS for value, text in answers}

Cells = list[tuple[Situation, Verdict]]
Rule = tuple[tuple[str, ...], Verdict]


def occurs(case: Situation) -> bool:
    """Whether a living run can ask the table about this. It answers for the rest all the same."""
    keyed = case.effect in ("idempotent", "mutating")
    return not (
        (case.effect == "mutating" and case.earlier != "nothing")
        or (not keyed and case.earlier == "failed")
        or (case.permitted and not (case.effect == "idempotent" and case.earlier == "unknown"))
        or (case.assume and case.effect != "mutating")
        or (case.end == "interrupted" and keyed)
        or (case.end == "cancelled" and not case.stop)
    )


def rules(cells: Cells) -> list[Rule]:
    """The shortest list found: of its lines the first whose conditions hold gives the verdict."""
    found = list(_split(cells, 0))
    for line in reversed(found.copy()):
        shorter = [rule for rule in found if rule is not line]
        if shorter and all(first(shorter, case) is verdict for case, verdict in cells):
            found = shorter
    return found


def first(found: list[Rule], case: Situation) -> Verdict | None:
    """The verdict of the first line that holds."""
    for conditions, verdict in found:
        if all(getattr(case, TEXTS[text][0]) == TEXTS[text][1] for text in conditions):
            return verdict
    return None


def _split(cells: Cells, asked: int) -> Iterator[Rule]:
    verdicts = {verdict for _, verdict in cells}
    if len(verdicts) == 1:
        yield (), verdicts.pop()
        return
    name, answers = QUESTIONS[asked]
    parts = [
        (text, [cell for cell in cells if getattr(cell[0], name) == value])
        for value, text in answers
    ]
    parts = [(text, part) for text, part in parts if part]
    lists = [list(_split(part, asked + 1)) for _, part in parts]
    if all(one == lists[0] for one in lists):
        yield from lists[0]
        return
    for (text, _), found in zip(parts, lists, strict=True):
        otherwise = text == parts[-1][0]
        for conditions, verdict in found:
            yield (conditions if otherwise else (text, *conditions)), verdict


def table() -> str:
    """The whole page."""
    cells: dict[tuple[str, str], Cells] = {}
    for case in situations():
        if occurs(case):
            cells.setdefault((case.end, case.effect), []).append((case, judge(case)))
    lines = [HEAD]
    for end in ENDS:
        lines.append(f"## {end.replace('_', ' ')}\n")
        groups: dict[tuple[Any, ...], list[str]] = {}
        for effect in EFFECTS:
            if (end, effect) in cells:
                groups.setdefault(tuple(rules(cells[end, effect])), []).append(effect)
        lines.extend(_group(found, effects) for found, effects in groups.items())
    lines.append("## A stop while the attempt is between dispatches\n")
    lines.append(_between())
    return "\n".join(lines)


def _group(found: tuple[Any, ...], effects: list[str]) -> str:
    who = "all classes" if len(effects) == len(EFFECTS) else ", ".join(f"`{e}`" for e in effects)
    body = [f"| {', '.join(when) or '—'} | {verdict.value} |" for when, verdict in found]
    return "\n".join([f"| {who} | |", "|---|---|", *body, ""])


def _between() -> str:
    rows = [
        f"| `{effect}` | {earlier} | {between(effect, earlier).value} |"
        for effect in EFFECTS
        for earlier in ("nothing", "failed", "unknown")
        if occurs(Situation(effect, "given_up", earlier))
    ]
    return "\n".join(["| class | earlier | what happens |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(table())
