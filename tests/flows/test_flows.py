"""The reference flows visit what they are there to visit."""

import ast
from pathlib import Path

import pytest

from tallystick.core.definition import EFFECTS
from tests.flows.reference import FLOWS, reference

TASKS = ast.parse((Path(__file__).parent / "tasks.py").read_text("utf-8"))


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_needs_name_steps_that_are_written_before(flow):
    seen: list[str] = []
    for node in flow().root.nodes:
        assert node.id not in seen
        assert set(node.needs) <= set(seen)
        seen.append(node.id)


def test_the_reference_flow_calls_every_class_as_coroutine_and_in_a_thread():
    called = {node.call.split(":")[1] for node in reference().root.nodes if node.call}
    visited = {(type(f), _effect(f)) for f in TASKS.body if getattr(f, "name", "") in called}
    modes = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert visited >= {(mode, effect) for mode in modes for effect in EFFECTS}


def test_the_reference_flow_has_every_kind_and_way():
    nodes = reference().root.nodes
    assert {node.kind for node in nodes} == {"call", "fail", "succeed"}
    for trait in ("when", "retry", "timeout_ms", "effect"):
        assert any(getattr(node, trait) is not None for node in nodes), trait
    assert {node.if_skipped for node in nodes} == {"skip", "run"}
    assert {node.on_failure for node in nodes} == {"fail", "continue"}


def _effect(function) -> str:
    for decorator in function.decorator_list:
        for keyword in getattr(decorator, "keywords", ()):
            if keyword.arg == "effect":
                return keyword.value.value
    return "mutating"
