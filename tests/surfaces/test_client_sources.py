"""A definition file is compiled before anything is written, all its problems told at once."""

from pathlib import Path

import pytest

import tallystick as ts
from tallystick.core.source import BYTES_MAX

WORKFLOW = """\
tally: 1
workflow: greeting
steps:
  - id: greet
    call: "greeting_tasks:greet"
    with: {name: "${{ input.name }}"}
    effect: read_only
output: ${{ steps.greet.output }}
"""
TASKS = """\
def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "greeting_tasks.py").write_text(TASKS)
    path = tmp_path / "greeting.yaml"
    path.write_text(WORKFLOW)
    return path


@pytest.mark.slow
async def test_a_definition_file_runs_with_the_tasks_beside_it(file: Path):
    async with ts.open(file.with_name("a.db"), engine=True) as tally:
        assert await tally.run(file, {"name": "Ada"}) == "hello Ada"
        assert tally.validate(file).problems == ()


async def test_all_problems_of_a_file_are_told_and_nothing_is_written(file: Path):
    _spoil(file)
    async with ts.open(file.with_name("a.db"), engine=True) as tally:
        with pytest.raises(ts.InvalidRequest) as refused:
            await tally.start(file, {"name": "Ada"})
        assert refused.value.code == "definition-invalid"
        told = refused.value.facts["problems"]
        found = tally.validate(file).problems
        assert [problem["message"] for problem in told] == [it.message for it in found]
        assert [problem["line"] for problem in told] == [it.line for it in found]
        assert len(told) == 2
        assert all(problem["file"] == str(file) for problem in told)
        assert await tally.list() == []


def test_a_file_over_the_limit_is_refused_without_being_read_to_its_end(file: Path):
    with file.open("wb") as large:
        large.truncate(1 << 40)  # sparse: whoever reads it all runs out of memory
    (problem,) = ts.open(file.with_name("a.db")).validate(file).problems
    assert "source-too-large" in str(problem)
    assert f"{BYTES_MAX // 1024 // 1024} MiB" in str(problem)


def test_a_file_that_is_not_there_is_refused_by_its_path(tmp_path: Path):
    with pytest.raises(ts.InvalidRequest, match=r"nothing\.yaml") as refused:
        ts.open(tmp_path / "a.db").validate(tmp_path / "nothing.yaml")
    assert refused.value.code == "definition-unreadable"


def _spoil(file: Path) -> None:
    text = file.read_text()
    file.write_text(text.replace("effect:", "effekt:").replace("output: $", "outputs: $"))
