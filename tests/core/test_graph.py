"""A definition is addressed by what it means, and its plan knows every neighbour."""

from typing import Any

import msgspec
import pytest

from tallystick.core.compiler import compile_source
from tallystick.core.definition import Binding, Bindings, Definition, Limits, Node, Retry, Scope
from tallystick.core.graph import RETRIED_BY_CLASS, Plan, definition_digest
from tests.core.world import EFFECTS, bindings_of, call, chain, definition_of, succeed

SOURCE = """\
tally: 1
workflow: orders
title: Orders
input: {type: object, properties: {n: {type: integer}}}
limits: {duration: 2h, attempts: 10}
steps:
  - id: charge
    title: Charge it
    call: "shop:charge"
    with: {n: "${{ input.n }}"}
    effect: idempotent
    retry: {max_attempts: 3, backoff: 1s}
    timeout: 10s
  - id: mail
    call: "shop:mail"
    effect: mutating
    when: "${{ input.n > 1 }}"
    needs: [charge]
"""
SAME: dict[str, tuple[str, str]] = {
    "a title": ("title: Orders", "title: Other"),
    "no title": ("title: Orders\n", ""),
    "the title of a step": ("    title: Charge it\n", ""),
    "labels": ("workflow: orders", "workflow: orders\nlabels: {team: shop}"),
    "a comment": ("steps:", "# what is done\nsteps: # here"),
    "the order of keys": ("tally: 1\nworkflow: orders\n", "workflow: orders\ntally: 1\n"),
    "the order within a map": ("{duration: 2h, attempts: 10}", "{attempts: 10, duration: 2h}"),
    "another spelling of a duration": ("duration: 2h", "duration: 120m"),
    "an explicit default": ("effect: mutating", "effect: mutating\n    on_failure: fail"),
    "block style": ("needs: [charge]", "needs:\n      - charge"),
}
OTHER: dict[str, tuple[str, str]] = {
    "the name": ("workflow: orders", "workflow: order"),
    "the schema": ("type: integer", "type: number"),
    "a limit": ("attempts: 10", "attempts: 11"),
    "the task": ("shop:mail", "shop:post"),
    "an input": ('"${{ input.n }}"', '"${{ input.n }} "'),
    "the effect": ("effect: idempotent", "effect: read_only"),
    "the policy": ("max_attempts: 3", "max_attempts: 4"),
    "the back-off": ("backoff: 1s", "backoff: 2s"),
    "a timeout": ("timeout: 10s", "timeout: 11s"),
    "a condition": ("input.n > 1", "input.n > 2"),
    "an edge": ("    needs: [charge]\n", ""),
    "what a failure does": ("effect: mutating", "effect: mutating\n    on_failure: continue"),
}


def digest_of(source: str) -> bytes:
    return definition_digest(compile_source(source.encode(), "orders.yaml").definition)


@pytest.mark.invariant("I9")
@pytest.mark.parametrize("name", SAME)
def test_what_only_people_read_does_not_change_the_digest(name):
    old, new = SAME[name]
    assert old in SOURCE
    assert digest_of(SOURCE.replace(old, new)) == digest_of(SOURCE)


@pytest.mark.invariant("I9")
@pytest.mark.parametrize("name", OTHER)
def test_what_is_done_changes_the_digest(name):
    old, new = OTHER[name]
    assert old in SOURCE
    assert digest_of(SOURCE.replace(old, new)) != digest_of(SOURCE)


@pytest.mark.invariant("I9", "M1")
def test_a_stored_definition_comes_back_as_it_was():
    definition = compile_source(SOURCE.encode(), "orders.yaml").definition
    plan = Plan(definition)
    again = msgspec.json.decode(plan.body, type=Definition)
    assert again == definition
    assert (Plan(again).body, Plan(again).digest) == (plan.body, plan.digest)


@pytest.mark.invariant("I9")
def test_each_field_of_a_node_is_in_the_digest():
    """A field that is added and forgotten in the digest would make two meanings one."""
    base = Node(id="a", kind="call", call="m:f", needs=("y",))
    values: dict[str, Any] = {
        "id": "b",
        "kind": "fail",
        "needs": ("z",),
        "if_skipped": "run",
        "when": "${{ input.x }}",
        "on_failure": "continue",
        "call": "m:g",
        "inputs": {"x": 1},
        "output_schema": {"type": "string"},
        "retry": Retry(max_attempts=2),
        "timeout_ms": 1,
        "effect": "mutating",
        "on_unknown": "assume_failed",
        "message": "m",
        "value": 1,
    }
    assert set(values) == set(Node.__struct_fields__)
    changed = [msgspec.structs.replace(base, **{name: value}) for name, value in values.items()]
    digests = {definition_digest(Definition("w", Scope((node,)))) for node in [base, *changed]}
    assert len(digests) == len(values) + 1


def test_a_plan_knows_who_needs_and_who_reads_whom():
    plan = Plan(
        definition_of(
            call("a"),
            call("b", needs=("a",), inputs={"x": "${{ steps.a.output }}"}),
            call("c", needs=("a", "b"), when="${{ steps.b.output.go }}"),
            succeed("d", needs=("c",), value=["${{ steps.a.output }}", "${{ steps.a.output.y }}"]),
            output="${{ steps.c.output }}",
        )
    )
    assert plan.roots == ("a",)
    assert plan.nodes["a"].followers == ("b", "c")
    assert plan.nodes["c"].needs == ("a", "b")
    assert plan.readers == {"a": 2, "b": 1, "c": 1}
    assert [node.leaf for node in plan.nodes.values()] == [True, True, True, False]


def test_default_order_waits_for_the_step_before_whatever_became_of_it():
    plan = Plan(definition_of(*chain(call("a"), call("b"), call("c"))))
    assert [node.needs for node in plan.nodes.values()] == [(), ("a",), ("b",)]
    assert [node.node.if_skipped for node in plan.nodes.values()] == ["skip", "run", "run"]


@pytest.mark.invariant("I11", "R5")
@pytest.mark.parametrize("effect", EFFECTS)
def test_terms_are_what_was_bound_and_name_only_what_the_class_allows(effect):
    definition = definition_of(call("a", effect, retry=Retry(), timeout_ms=7))
    binding = Binding("shop:charge", effect, contract="abc", mode="thread", max_attempts=4)
    bound = Plan(definition).bind(Bindings({"a": binding}, root="/srv"))
    terms = bound.leaf("a").terms
    assert (terms.effect, terms.contract, terms.mode) == (effect, "abc", "thread")
    assert (terms.task, terms.max_attempts) == ("shop:charge", 4)
    assert (terms.root, terms.timeout_ms) == ("/srv", 7)
    assert set(terms.on) == RETRIED_BY_CLASS[effect]
    assert bound.modes == {"thread"}
    assert bound.leaf("a") is bound.leaf("a")


@pytest.mark.invariant("I11")
def test_a_leaf_without_a_binding_is_what_the_definition_says():
    bound = Plan(definition_of(call("a", "read_only"), Node(id="b", kind="call", call="m:f")))
    leaf = bound.bind(Bindings()).leaf
    assert [leaf(name).terms.effect for name in "ab"] == ["read_only", "mutating"]
    assert leaf("b").terms.max_attempts == 1


def test_runs_of_equal_bindings_share_one_bound_plan():
    definition = definition_of(call("a"), limits=Limits(attempts=1))
    plan = Plan(definition)
    assert plan.bind(bindings_of(definition)) is plan.bind(bindings_of(definition))
    assert plan.bind(bindings_of(definition)) is not plan.bind(
        bindings_of(definition, {"a": "thread"})
    )
