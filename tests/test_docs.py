"""What the docs say can be done, can be done: links, Python examples, verbs of make.

`make docs` runs this together with `test_package`.
"""

import ast
import re
from typing import Final

import pytest

from tallystick.core.compiler import KEYS, compile_source
from tallystick.core.diagnostics import SourceRefused
from tallystick.core.soundness import KINDS_LATER
from tallystick.core.steps_source import RETRY_KEYS, STEP_KEYS
from tests import project

FENCE: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK: Final = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
SHELL: Final = {"sh", "bash", "console", "shell"}


def test_every_link_leads_somewhere():
    broken = [
        f"{project.named(page)}: {target}"
        for page in project.docs()
        for target in links(page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_python_example_is_python():
    broken = [
        f"{project.named(page)}: {problem}"
        for page in project.docs()
        for language, block in FENCE.findall(page.read_text("utf-8"))
        if language in {"python", "py"} and (problem := syntax_problem(block))
    ]
    assert broken == []


def test_every_workflow_in_the_docs_compiles():
    """An example whose effects are left to the task on purpose may warn of that, and only that."""
    told = [
        f"{project.named(page)}: {problem}"
        for page in project.docs()
        for language, block in FENCE.findall(page.read_text("utf-8"))
        if language in {"yaml", "yml"} and re.match(r"(#.*\n)*tally:", block)
        for problem in workflow_problems(block)
    ]
    assert told == []


def test_the_language_is_shown_by_examples():
    text = (project.ROOT / "docs/language.md").read_text("utf-8")
    shown = "\n".join(block for language, block in FENCE.findall(text) if language == "yaml")
    for key in (*KEYS, *STEP_KEYS, *RETRY_KEYS):
        assert f"`{key}`" in text, key
    assert [key for key in KINDS_LATER if f"`{key}`" not in text] == []
    assert len(re.findall(r"^tally: 1$", shown, re.MULTILINE)) >= 8


def test_a_workflow_that_does_not_compile_is_seen():
    assert list(workflow_problems("tally: 1\nworkflow: w\nsteps: []\n"))
    assert list(workflow_problems("tally: 1\nworkflow: w\nsteps: [{id: a, call: 'm:f'}]\n")) == []


def test_every_make_verb_in_the_docs_exists():
    verbs = set(
        re.findall(r"^([a-z]+):", (project.ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    )
    unknown = [
        f"{project.named(page)}: make {verb}"
        for page in project.docs()
        for verb in make_verbs(page.read_text("utf-8"))
        if verb not in verbs
    ]
    assert unknown == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a](b.md)", ["b.md"]),
        ("[a](b.md#part) ![c](d.svg)", ["b.md", "d.svg"]),
        ("[a](https://example.org) [b](#part) [m](mailto:a@example.org)", []),
        ("```\n[a](b.md)\n```", []),
        ("`x[0](y)`", []),
    ],
)
def test_links_are_found_outside_of_code(text, found):
    assert list(links(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`make test`", ["test"]),
        ("```sh\nmake demo\n$ make sim SEED=1\n```", ["demo", "sim"]),
        ("we make sure; make haste", []),
        ("```yaml\nrun: make it\n```", []),
    ],
)
def test_make_verbs_are_found_in_code_alone(text, found):
    assert list(make_verbs(text)) == found


def test_an_example_may_await_at_its_top_and_a_broken_one_is_seen():
    assert syntax_problem("async with open() as x:\n    await x.start()\n") is None
    assert syntax_problem("def f(:\n") is not None


def links(text: str):
    """Yield the targets of links to files, without their anchors."""
    prose = re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))
    for target in (first or second for first, second in LINK.findall(prose)):
        path = target.split("#")[0]
        if path and not re.match(r"[a-z]+:", target):
            yield path


def make_verbs(text: str):
    """Yield each verb of make that a code span or a shell block names."""
    for language, block in FENCE.findall(text):
        if language in SHELL:
            yield from re.findall(r"^(?:\$ )?make ([a-z]+)", block, re.MULTILINE)
    yield from re.findall(r"`make ([a-z]+)[^`\n]*`", FENCE.sub("", text))


def workflow_problems(block: str):
    """Yield each problem of a workflow, and each warning but that of undeclared effects."""
    try:
        found = compile_source(block.encode(), "example").warnings
    except SourceRefused as refused:
        found = refused.diagnostics
    yield from (str(problem) for problem in found if problem.code != "effect-undeclared")


def syntax_problem(block: str) -> str | None:
    """Say what keeps a block from being Python, top-level await included; None if nothing does."""
    try:
        compile(block, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    return None
