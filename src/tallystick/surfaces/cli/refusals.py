"""A refusal as one JSON object, and as lines for people: what, where, which check, what next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from tallystick.errors import Fact, TallyError
from tallystick.surfaces.render import command, instant, preview, safe, safe_lines

if TYPE_CHECKING:
    from tallystick.surfaces.cli.port import ProblemDocument
    from tallystick.surfaces.cli.screen import Style


def of_problems(problems: list[ProblemDocument]) -> dict[str, object]:
    """The refusal of a source that has problems."""
    count = len(problems)
    file = problems[0]["file"]
    return {
        **of_usage(f"{count} problem{'s' if count != 1 else ''} in the definition", None),
        "code": "definition-invalid",
        "check": "definition",
        "next_step": f"repair it, then: {command(['tally', 'validate', file])}",
        "problems": problems,
    }


def of_error(error: TallyError) -> dict[str, object]:
    """The refusal that an error of ours is. Problems among its facts stand beside them."""
    document = error.as_json()
    facts = dict(error.facts)
    problems = facts.get("problems")
    if error.code == "definition-invalid" and isinstance(problems, list) and problems:
        return of_problems(cast("list[ProblemDocument]", problems))
    return {**document, "problems": []}


def of_usage(message: str, usage: str | None) -> dict[str, object]:
    """The refusal of a command line that says nothing sensible."""
    return of_error(TallyError(message, code="usage", check="command-line", next_step=usage)) | {
        "error": "InvalidRequest"
    }


def of_system(error: OSError) -> dict[str, object]:
    """The refusal of the operating system."""
    facts: dict[str, Fact] = {"errno": error.errno, "path": _path(error)}
    message = error.strerror or str(error)
    return of_error(TallyError(message, code="operating-system", facts=facts, next_step=None)) | {
        "error": "StoreUnavailable"
    }


def page(document: Mapping[str, object], style: Style) -> list[str]:
    """The refusal for people."""
    lines = problem_lines(document.get("problems"), style)
    head, *rest = safe_lines(document.get("message"))
    lines.append(f"{style.paint('error', 'tally:')} {head}")
    lines += [f"  {line}" for line in rest]
    if (check := document.get("check")) is not None:
        lines.append(f"  check   {safe(check)} ({safe(document.get('code'))})")
    else:
        lines.append(f"  code    {safe(document.get('code'))}")
    facts = document.get("facts")
    told = {safe(name): value for name, value in facts.items()} if isinstance(facts, dict) else {}
    width = max([7, *map(len, told)])
    for name, value in told.items():
        lines += _fact(name.ljust(width), value)
    if (step := document.get("next_step")) is not None:
        lines.append(f"  next    {safe(step)}")
    return lines


def _fact(name: str, value: object) -> list[str]:
    """A fact: a plain value on a line, members of a list on lines of their own."""
    if name.strip() == "since":
        return [f"  {name} {instant(value)}"]
    members = value if isinstance(value, list) else [value]
    texts = [safe(it) if isinstance(it, str | int) else preview(it) for it in members]
    heads = [name, *[" " * len(name)] * len(texts)]
    return [f"  {head} {text}" for head, text in zip(heads, texts, strict=False)]


def problem_lines(problems: object, style: Style) -> list[str]:
    """Each problem as `file:line:column: code: message`, its remedy below."""
    lines: list[str] = []
    for problem in problems if isinstance(problems, list) else ():
        where = safe(problem["file"])
        if problem["line"]:
            where += f":{problem['line']}:{problem['column']}"
        code = style.paint("error", safe(problem["code"]))
        lines.append(f"{style.paint('strong', where)}: {code}: {safe(problem['message'])}")
        if problem["remedy"]:
            lines.append(f"    {safe(problem['remedy'])}")
    return lines


def _path(error: OSError) -> str | None:
    return None if error.filename is None else str(error.filename)
