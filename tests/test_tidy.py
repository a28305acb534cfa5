"""The few house rules that no tool knows.

Each rule is a function from a file to its offences, so that each can be shown to fail on a bad
sample. An offence is "line: what is wrong".
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests import project

MODULE_LINES_MAX: Final = 450  # past that, ask which two talks the module has become
FUNCTION_LINES_MAX: Final = 70  # without the docstring; a reducer's match may fill a screen

NAMES_THAT_SAY_NOTHING: Final = re.compile(r"(utils?|helpers?|common|base|misc)\.py")
UNSAFE: Final = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
UNFINISHED: Final = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
BARE: Final = re.compile(r"#\s*(type:\s*ignore(?!\[)|noqa(?!:)|pyright:\s*ignore(?!\[))")
# The project speaks of itself alone: not of who built it, when, or with what.
PEOPLE: Final = re.compile(
    r"\b(co-authored-by|sub-?agents?|co-?workers?|team-?mates?|ceo|this sitting|this session)\b"
    r"|\b(the brief|brief\.md|work-?trees?|issue #?\d+)\b|\.\./shared\b",
    re.IGNORECASE,
)

Rule = Callable[[str], Iterator[str]]


def module_says_what_it_is_for(source: str) -> Iterator[str]:
    docstring = ast.get_docstring(ast.parse(source)) or ""
    opening = docstring.split("\n\n")[0].strip()
    if not re.match(r"[A-Z0-9`].*[.?!:]$", opening, re.DOTALL):
        yield "1: the module does not open with a sentence that says what it is for"


def module_is_short(source: str) -> Iterator[str]:
    if (lines := len(source.splitlines())) > MODULE_LINES_MAX:
        yield f"1: {lines} lines; past {MODULE_LINES_MAX} a module has become two"


def functions_are_short(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if (lines := _body_lines(node)) > FUNCTION_LINES_MAX:
            yield f"{node.lineno}: {node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"


def nothing_unsafe_is_imported(source: str) -> Iterator[str]:
    for line, name in _imports(source):
        if name.split(".")[0] in UNSAFE:
            yield f"{line}: {name} lets stored data run code"


def nothing_sleeps(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
                yield f"{node.lineno}: time.sleep; await a signal or move the virtual clock"
            case ast.ImportFrom(module="time", names=names) if any(
                n.name == "sleep" for n in names
            ):
                yield f"{node.lineno}: time.sleep; await a signal or move the virtual clock"
            case _:
                pass


def nothing_is_ignored_without_a_code(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and BARE.search(token.string):
            yield f"{token.start[0]}: {token.string} names no code"


def nothing_is_left_for_later(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"{number}: {line.strip()}"


def the_project_speaks_of_itself_alone(text: str) -> Iterator[str]:
    here = re.compile(rf"(?<![\w./-]){re.escape(str(project.ROOT))}(?![\w-])")
    for number, line in enumerate(text.splitlines(), 1):
        if PEOPLE.search(line) or here.search(line):
            yield f"{number}: {line.strip()}"


RULES: Final[dict[Rule, Callable[[], list]]] = {
    module_says_what_it_is_for: project.sources,
    module_is_short: lambda: project.sources("src"),
    functions_are_short: lambda: project.sources("src"),
    nothing_unsafe_is_imported: project.sources,
    nothing_sleeps: lambda: project.sources("tests"),
    nothing_is_ignored_without_a_code: project.sources,
    nothing_is_left_for_later: project.files,
    the_project_speaks_of_itself_alone: project.files,
}
# Only this file may spell out what the others must not contain.
WORDS: Final = {nothing_is_left_for_later, the_project_speaks_of_itself_alone}
HOLDS_THE_WORDS: Final = "tests/test_tidy.py"

BAD: Final[dict[Rule, list[str]]] = {
    module_says_what_it_is_for: ["", "x = 1", '"""values"""', '"""Values and such"""'],
    module_is_short: ["x = 1\n" * (MODULE_LINES_MAX + 1)],
    functions_are_short: ["async def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX],
    nothing_unsafe_is_imported: [
        "import pickle",
        "from marshal import loads",
        "def f():\n    import os, shelve",
    ],
    nothing_sleeps: ["import time\ntime.sleep(1)", "from time import monotonic, sleep"],
    nothing_is_ignored_without_a_code: ["x = 1  # type: ignore", "x = 1  # noqa", "#type:ignore"],
    nothing_is_left_for_later: ["# TODO: more", "a\nFIXME"],
    the_project_speaks_of_itself_alone: [
        f"see {project.ROOT}/README.md",
        f"cd {project.ROOT}",
        "as issue 7 asks",
        "Co-Authored-By: somebody",
    ],
}
GOOD: Final[dict[Rule, list[str]]] = {
    module_says_what_it_is_for: ['"""Values, and what\nthey mean.\n\nMore"""', '"""`x` is why."""'],
    module_is_short: ["x = 1\n" * MODULE_LINES_MAX],
    functions_are_short: [
        'def f():\n    """Much.\n'
        + "\n" * 99
        + '    """\n'
        + "    x = 1\n" * (FUNCTION_LINES_MAX - 1)
    ],
    nothing_unsafe_is_imported: ["import json", "from x import pickle_like"],
    nothing_sleeps: ["import asyncio\nasyncio.sleep(0)", "from time import monotonic"],
    nothing_is_ignored_without_a_code: [
        "x = 1  # type: ignore[attr-defined]  # no stubs",
        "x = 1  # noqa: S608",
        "'# type: ignore'",
    ],
    nothing_is_left_for_later: ["todos = 3"],
    the_project_speaks_of_itself_alone: [
        f"{project.ROOT}-elsewhere",
        f"/mnt{project.ROOT}",
        "a session-level lock",
        "the issue is 7",
    ],
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_its_house_rules(rule):
    offences = [
        f"{project.named(path)}:{offence}"
        for path in RULES[rule]()
        if project.named(path) != HOLDS_THE_WORDS or rule not in WORDS
        for offence in rule(_text(path))
    ]
    assert not offences, "\n".join(offences)


@pytest.mark.parametrize(("rule", "sample"), [(r, s) for r, many in BAD.items() for s in many])
def test_each_rule_sees_what_it_forbids(rule, sample):
    assert list(rule(sample))


@pytest.mark.parametrize(("rule", "sample"), [(r, s) for r, many in GOOD.items() for s in many])
def test_each_rule_lets_pass_what_is_fine(rule, sample):
    assert not list(rule(sample))


def test_a_module_is_named_after_what_it_is_about():
    offences = [
        project.named(p) for p in project.sources() if NAMES_THAT_SAY_NOTHING.fullmatch(p.name)
    ]
    assert not offences, "a module is a noun you could give a talk on"


def _text(path) -> str:
    """Read a file as text; what is not text has no words to object to."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return ""


def _imports(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield node.lineno, module
            case _:
                pass


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node, clean=False) is None:
        return lines
    docstring = node.body[0]
    assert docstring.end_lineno is not None
    return lines - (docstring.end_lineno - docstring.lineno + 1)
