"""Sound definitions drawn by hypothesis, and sources that mean them."""

import json
import random
from typing import Any, Final

from hypothesis import strategies as st
from msgspec import UNSET

from tallystick.core.definition import (
    EFFECTS,
    FAILURE_KINDS,
    Definition,
    Limits,
    Node,
    Retry,
    Scope,
)
from tallystick.core.graph import RETRIED_BY_CLASS
from tallystick.core.instants import Millis, format_duration

IDS: Final = ("a", "b-1", "_c", "on", "in", "Step2")
SCHEMAS: Final[tuple[Any, ...]] = (
    None,
    {"type": "string"},
    {"type": "object", "properties": {"n": {"type": "integer"}}},
    {"$ref": "#/types/Id"},
    False,
)
VALUES: Final[tuple[Any, ...]] = (
    "text",
    1,
    1.0,
    True,
    "1.10",
    "${{ input }}",
    "${{ run.id }}!",
    ["${{ run.id }}", {"x": None}],
    {"a": {"b": [0.5, 2**70]}},
    "line\nbreak: #x",
)


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    """Draw a sound definition of one to six steps."""
    ids = draw(st.permutations(IDS))[: draw(st.integers(1, len(IDS)))]
    nodes = tuple(draw(_nodes(name, ids[:at])) for at, name in enumerate(ids))
    return Definition(
        workflow=draw(st.sampled_from(["w", "Größe 7", "true", "1.10"])),
        root=Scope(nodes),
        input=draw(st.sampled_from(SCHEMAS)),
        types={"Id": {"type": "string"}},
        limits=Limits(*(draw(st.none() | st.integers(1, 10_000)) for _ in range(3))),
        output=draw(st.sampled_from((UNSET, *VALUES))),
    )


@st.composite
def _nodes(draw: st.DrawFn, name: str, before: list[str]) -> Node:
    needs = tuple(draw(st.lists(st.sampled_from(before), unique=True)) if before else ())
    shared: dict[str, Any] = {
        "id": name,
        "needs": needs,
        "if_skipped": draw(st.sampled_from(["skip", "run"])) if needs else "skip",
        "when": draw(st.sampled_from([None, "${{ false }}", "${{ run.id == 'x' }}"])),
        "on_failure": draw(st.sampled_from(["fail", "continue"])),
    }
    match draw(st.sampled_from(["call", "call", "fail", "succeed"])):
        case "fail":
            return Node(
                kind="fail", message=draw(st.sampled_from(["no", "${{ run.id }}"])), **shared
            )
        case "succeed":
            return Node(kind="succeed", value=draw(st.sampled_from((UNSET, *VALUES))), **shared)
        case _:
            return draw(_calls(shared))


@st.composite
def _calls(draw: st.DrawFn, shared: dict[str, Any]) -> Node:
    effect = draw(st.sampled_from([None, *EFFECTS]))
    inputs = draw(st.dictionaries(st.sampled_from(["x", "y z", "on"]), st.sampled_from(VALUES)))
    return Node(
        kind="call",
        call="shop.work:charge",
        inputs=inputs or None,
        output_schema=draw(st.sampled_from(SCHEMAS)),
        timeout_ms=draw(st.none() | st.integers(1, 10**9)),
        effect=effect,
        retry=draw(st.none() | _policies(RETRIED_BY_CLASS[effect or "mutating"])),
        **shared,
    )


@st.composite
def _policies(draw: st.DrawFn, allowed: frozenset[str]) -> Retry | None:
    named = draw(st.none() | st.sets(st.sampled_from(sorted(allowed))))
    found = Retry(
        max_attempts=draw(st.none() | st.integers(1, 9)),
        on=None if named is None else tuple(kind for kind in FAILURE_KINDS if kind in named),
        backoff_ms=draw(st.sampled_from([0, 1_000, 5_000])),
        factor=draw(st.sampled_from([2.0, 1.0, 0.5])),
        backoff_max_ms=draw(st.sampled_from([60_000, 90_061_001])),
        interruptions_max=draw(st.sampled_from([5, 0])),
    )
    return None if found == Retry() else found


def outline(definition: Definition, *, spelled_out: bool = False) -> dict[str, Any]:
    """Return the document of a source that means this. `spelled_out`: with every default."""
    limits = {
        "duration": _duration(definition.limits.duration_ms),
        "attempts": definition.limits.attempts,
        "concurrency": definition.limits.concurrency,
    }
    document = {
        "tally": 1,
        "workflow": definition.workflow,
        "input": definition.input,
        "types": definition.types,
        "limits": _set(limits),
        "steps": _steps(definition, spelled_out=spelled_out),
        "output": None if definition.output is UNSET else definition.output,
    }
    if spelled_out:
        document |= {"defaults": {"on_failure": "fail", "retry": {}}}
        document["input"] = True if definition.input is None else definition.input
    return _set(document)


def _steps(definition: Definition, *, spelled_out: bool) -> list[dict[str, Any]]:
    found, before = [], None
    for node in definition.root.nodes:
        found.append(_step(node, before, spelled_out=spelled_out))
        before = node.id
    return found


def _step(node: Node, before: str | None, *, spelled_out: bool) -> dict[str, Any]:
    step: dict[str, Any] = {
        "id": node.id,
        "when": node.when,
        "call": node.call,
        "with": node.inputs,
        "output": node.output_schema,
        "timeout": _duration(node.timeout_ms),
        "effect": node.effect,
        "retry": None if node.retry is None else _retry(node.retry, spelled_out=spelled_out),
        "fail": node.message,
    }
    by_order = ((before,), "run") if before else ((), "skip")
    if spelled_out or (node.needs, node.if_skipped) != by_order:
        step |= {"needs": list(node.needs), "if_skipped": node.if_skipped}
    if spelled_out or node.on_failure != "fail":
        step["on_failure"] = node.on_failure
    if spelled_out and node.when is None:
        step["when"] = True
    if spelled_out and node.kind == "call":
        step["retry"] = step["retry"] or {}
        step["with"] = step["with"] or {}
        step["output"] = {} if node.output_schema is None else node.output_schema
    found = _set(step)
    if node.kind == "succeed":
        found["succeed"] = None if node.value is UNSET else node.value
    return found


def _retry(retry: Retry, *, spelled_out: bool) -> dict[str, Any]:
    silent = Retry()
    fields = {
        "max_attempts": retry.max_attempts,
        "on": None if retry.on is None else list(retry.on),
        "backoff": _duration(retry.backoff_ms),
        "factor": retry.factor,
        "backoff_max": _duration(retry.backoff_max_ms),
        "interruptions_max": retry.interruptions_max,
    }
    defaults = {
        "backoff": _duration(silent.backoff_ms),
        "factor": silent.factor,
        "backoff_max": _duration(silent.backoff_max_ms),
        "interruptions_max": silent.interruptions_max,
    }
    kept = fields if spelled_out else {k: v for k, v in fields.items() if v != defaults.get(k)}
    return _set(kept)


def _duration(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else format_duration(Millis(milliseconds))


def _set(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def source_of(document: object, seed: int | None = None) -> str:
    """Write a document as JSON, which is YAML. `seed`: with its keys in an order of that."""
    chosen = document if seed is None else _shuffled(document, random.Random(seed))
    return json.dumps(chosen, ensure_ascii=seed is not None and seed % 2 == 0, indent=1)


def _shuffled(value: object, chance: random.Random) -> object:
    if isinstance(value, dict):
        keys = chance.sample(list(value), len(value))
        return {key: _shuffled(value[key], chance) for key in keys}
    return [_shuffled(item, chance) for item in value] if isinstance(value, list) else value
