"""The pages for people, rendered from the documents of `port`.

Nothing here asks for anything: a page is a function from a document to lines. Every text from a
document goes through `safe`, and a field of another type than expected is shown, never computed
with, so that one odd row cannot spoil a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tallystick.surfaces.cli.port import (
    DoubtDocument,
    IdleDocument,
    ListDocument,
    RunDocument,
    RunLine,
    StepDocument,
    ValidDocument,
)
from tallystick.surfaces.cli.refusals import problem_lines
from tallystick.surfaces.cli.screen import Style
from tallystick.surfaces.render import Column, command, instant, preview, safe, safe_lines, table

STEPS_MAX: Final = 200
"""Steps on one page; what needs attention comes first."""

LINES_MAX: Final = 40
"""Lines of one failure's message."""

_ATTENTION: Final = {
    "in_doubt": 0,
    "failed": 1,
    "cancelled": 1,
    "running": 2,
    "retry": 3,
    "ready": 4,
}


def run_page(run: RunDocument, style: Style, database: Sequence[str] = ()) -> list[str]:
    """Everything that is known of a run. database: words to add to commands to paste."""
    lines = [_headline(run, style), *_facts(run)]
    if run["failure"] is not None:
        lines += failure_lines(run["failure"], style)
    lines += _waits(run, database)
    if run["steps"]:
        lines += ["", *_steps(run["steps"], style)]
    for doubt in run["doubts"]:
        lines += ["", *doubt_lines(run["run"], doubt, style, database)]
    return lines


def end_page(run: RunDocument, style: Style, database: Sequence[str] = ()) -> list[str]:
    """How a watched run ended, or where it stands."""
    lines = [_headline(run, style)]
    if run["status"] == "succeeded":
        lines.append(f"  output    {preview(run['output'])}")
    if run["failure"] is not None:
        lines += failure_lines(run["failure"], style)
    for doubt in run["doubts"]:
        lines += ["", *doubt_lines(run["run"], doubt, style, database)]
    return [*lines, *_waits(run, database)]


def doubt_lines(
    run: str, doubt: DoubtDocument, style: Style, database: Sequence[str] = ()
) -> list[str]:
    """What a person has to find out about a doubt, and the commands that decide it."""
    words = ("tally", "resolve", *database, run, doubt["step"], "--outcome")
    return [
        *doubt_question(doubt, style),
        f"  happened  {command([*words, 'succeeded', '--output'])} JSON",
        f"  did not   {command([*words, 'never_happened'])}",
    ]


def doubt_question(doubt: DoubtDocument, style: Style) -> list[str]:
    """What a person has to find out about a doubt."""
    step, attempt = safe(doubt["step"]), safe(doubt["attempt"])
    return [
        style.paint("in_doubt", f"In doubt: {step}, attempt {attempt}")
        + " may have happened, and nobody here can prove its outcome.",
        f"  because   {safe(doubt['detail'] or doubt['reason'])}",
        f"  effect    {safe(doubt['effect'])}",
        f"  key       {safe(doubt['identity'])}",
        f"  since     {instant(doubt['since'])}",
    ]


def resolved_page(run: RunDocument, step: str, style: Style, database: Sequence[str]) -> list[str]:
    """The run after a decision, and how it goes on."""
    return [f"{safe(step)}: the decision is recorded", *end_page(run, style, database)]


def list_page(page: ListDocument, style: Style, database: Sequence[str] = ()) -> list[str]:
    """Runs, one line each."""
    if not page["runs"]:
        return ["no runs"]
    columns = (
        Column("RUN"),
        Column("STATUS", least=9),
        Column("WORKFLOW", least=8, drop=1),
        Column("KEY", least=8, drop=2),
        Column("ADMITTED", drop=3),
        Column("ENDED", drop=4),
    )
    rows = [_row(line) for line in page["runs"]]
    head, *body = table(columns, rows, style.width)
    lines = [style.paint("faint", head)]
    for line, text in zip(page["runs"], body, strict=True):
        lines.append(_tinted(text, safe(_status(line)), line["status"], style))
    if page["next"] is not None:
        more = command(["tally", "list", *database, "--before", page["next"]])
        lines.append(style.paint("faint", f"more: {more}"))
    return lines


def valid_page(found: ValidDocument, style: Style) -> list[str]:
    """What `validate` found, problems left out: they are the refusal."""
    lines = problem_lines(found["warnings"], style)
    if found["valid"]:
        good = style.paint("succeeded", "valid")
        count = found["steps"]
        lines.append(
            f"{safe(found['file'])}: {good}: {safe(found['workflow'])}, "
            f"{safe(count)} step{'s' if count != 1 else ''}, digest {safe(found['digest'])}"
        )
    return lines


def idle_page(found: IdleDocument, database: Sequence[str] = ()) -> list[str]:
    """What is left when nothing moves by itself."""
    counts = ", ".join(f"{count} {safe(name)}" for name, count in sorted(found["statuses"].items()))
    waiting = [command(["tally", "show", *database, run]) for run in found["person"]]
    return [f"idle: {counts or 'no runs'}", *(f"  waits for a person: {line}" for line in waiting)]


def failure_lines(failure: Mapping[str, object], style: Style) -> list[str]:
    """A failure, its message with all its lines up to a bound."""
    where = f" in {safe(failure['step'])}" if failure.get("step") else ""
    kind = style.paint("failed", safe(failure.get("kind")))
    head, *rest = safe_lines(failure.get("message"))
    lines = [f"  failure   {kind}{where}: {head}"]
    lines += [f"            {line}" for line in rest[:LINES_MAX]]
    if len(rest) > LINES_MAX:
        lines.append(f"            … {len(rest) - LINES_MAX} more lines; --json shows all")
    return lines


def _headline(run: RunLine, style: Style) -> str:
    status = style.paint(run["status"], safe(_status(run)))
    return f"{style.paint('strong', safe(run['run']))}  {safe(run['workflow'])}  {status}"


def _waits(run: RunLine, database: Sequence[str]) -> list[str]:
    """Who has to act before a run goes on, if it is not its engine."""
    if run["status"] != "waiting":
        return []
    if run["person"]:
        return [f"  waits     for a person ({safe(run['reason'])})"]
    if run["reason"] not in ("owner", "start"):
        return []
    carry_on = command(["tally", "engine", *database, "--until-idle"])
    return [f"  waits     for an engine: {carry_on}"]


def _status(run: RunLine) -> str:
    return f"{run['status']}({run['reason']})" if run["reason"] else str(run["status"])


def _facts(run: RunDocument) -> list[str]:
    facts: list[tuple[str, str]] = []
    if run["key"] is not None:
        facts.append(("key", safe(run["key"])))
    facts.append(("admitted", instant(run["admitted_at"])))
    if run["deadline"] is not None:
        facts.append(("deadline", instant(run["deadline"])))
    if run["ended_at"] is not None:
        facts.append(("ended", instant(run["ended_at"])))
    if run["owner"] is not None:
        facts.append(("owner", f"{safe(run['owner'])}, generation {safe(run['generation'])}"))
    facts.append(("input", preview(run["input"])))
    if run["status"] == "succeeded":
        facts.append(("output", preview(run["output"])))
    return [f"  {name.ljust(9)} {text}" for name, text in facts]


def _steps(steps: Sequence[StepDocument], style: Style) -> list[str]:
    shown = steps
    if len(steps) > STEPS_MAX:
        shown = sorted(steps, key=lambda step: _ATTENTION.get(step["status"], 9))[:STEPS_MAX]
    columns = (
        Column("STEP", least=12),
        Column("STATUS"),
        Column("ATTEMPT", drop=2),
        Column("EFFECT", drop=3),
        Column("", least=10, drop=1),
    )
    rows = [
        (
            safe(step["step"]),
            safe(step["status"]),
            _attempt(step),
            safe(step["effect"] or ""),
            _step_note(step),
        )
        for step in shown
    ]
    head, *body = table(columns, rows, style.width)
    lines = [style.paint("faint", head)]
    for step, text in zip(shown, body, strict=True):
        lines.append(_tinted(text, safe(step["status"]), step["status"], style))
    if len(shown) < len(steps):
        lines.append(f"… {len(steps) - len(shown):,} more steps; --json shows all")
    return lines


def _attempt(step: StepDocument) -> str:
    if step["attempt"] is None:
        return ""
    again = step["dispatch"]
    return f"{step['attempt']}" if again in (None, 1) else f"{step['attempt']}, dispatch {again}"


def _step_note(step: StepDocument) -> str:
    if step["failure"] is not None:
        return f"{step['failure'].get('kind')}: {safe(step['failure'].get('message'))[:200]}"
    if step["due_at"] is not None:
        return f"next at {instant(step['due_at'])}"
    return ""


def _row(line: RunLine) -> tuple[str, ...]:
    return (
        safe(line["run"]),
        safe(_status(line)),
        safe(line["workflow"]),
        "" if line["key"] is None else safe(line["key"]),
        instant(line["admitted_at"]),
        instant(line["ended_at"]),
    )


def _tinted(text: str, shown: str, style_name: str, style: Style) -> str:
    """Colour the status inside a line of a table, where it stands whole."""
    if not style.paint.on or f"  {shown}" not in text:
        return text
    return text.replace(f"  {shown}", f"  {style.paint(style_name, shown)}", 1)
