"""Is this definition one that can run? Everything that is wrong with it, at once.

The compiler asks before it hands a definition out, with the places in the source; admission asks
for definitions that were built in Python. The paths are those of the language: `steps`, position,
field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from tallystick.core.definition import (
    ATTEMPTS_MAX,
    EFFECTS,
    FAILURE_KINDS,
    LEAF_KINDS,
    NODES_MAX,
    Definition,
    Json,
    Limits,
    Node,
    Retry,
)
from tallystick.core.expression_values import ExpressionFailed
from tallystick.core.fields import compile_field, names_of
from tallystick.core.graph import retry_problem
from tallystick.core.pointer import Path
from tallystick.core.references import Names
from tallystick.core.retry import DELAY_MAX_MS

ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
ID_BYTES_MAX = 512
TARGET = re.compile(
    r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*", re.ASCII
)
CONCURRENCY_MAX = 1_000_000

KINDS = frozenset({"call", "fail", "succeed"})
KINDS_LATER = frozenset(
    {
        "run",
        "http",
        "agent",
        "workflow",
        "approve",
        "ask",
        "wait",
        "branch",
        "map",
        "repeat",
        "group",
        "always",
    }
)
"""Kinds of the language that this version refuses by name. Source: design §9."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    code  stable, kebab-case · path: as in the language, e.g. ("steps", 2, "needs", 0)
    """

    code: str
    path: Path
    message: str
    remedy: str


def problems(definition: Definition) -> list[Problem]:
    """Every problem of the graph, in the order of the source. Empty: it can run."""
    nodes = definition.root.nodes
    found = [*_limits(definition.limits)]
    if not nodes:
        found.append(Problem("no-steps", ("steps",), "a workflow needs a step", "add one"))
    if len(nodes) > NODES_MAX:
        message = f"{len(nodes)} steps; at most {NODES_MAX} are allowed"
        found.append(Problem("too-many-steps", ("steps",), message, "split the workflow"))
        return found
    places = _places(nodes)
    for at, node in enumerate(nodes):
        found.extend(_node(node, ("steps", at)))
        found.extend(_needs(node, at, places))
    found.extend(_repeats(nodes))
    if any(problem.code.startswith("needs-") for problem in found):
        return found
    ancestors = _ancestors(nodes, places)
    if isinstance(ancestors, Problem):
        return [*found, ancestors]
    found.extend(_references(definition, places, ancestors))
    return found


def _places(nodes: tuple[Node, ...]) -> dict[str, int]:
    places: dict[str, int] = {}
    for at, node in enumerate(nodes):
        places.setdefault(node.id, at)
    return places


def _repeats(nodes: tuple[Node, ...]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for at, node in enumerate(nodes):
        first = seen.setdefault(node.id, at)
        if first != at:
            message = f"two steps are called `{node.id}`"
            yield Problem("step-id-repeated", ("steps", at, "id"), message, "rename one of them")


def _limits(limits: Limits) -> Iterator[Problem]:
    for name, value, most in (
        ("duration", limits.duration_ms, DELAY_MAX_MS),
        ("attempts", limits.attempts, ATTEMPTS_MAX),
        ("concurrency", limits.concurrency, CONCURRENCY_MAX),
    ):
        if value is not None and not 1 <= value <= most:
            message = f"`{name}` must be from 1 to {most}"
            yield Problem("limit-out-of-range", ("limits", name), message, "leave it out: no limit")


def _node(node: Node, path: Path) -> Iterator[Problem]:
    if not ID.fullmatch(node.id) or len(node.id) > ID_BYTES_MAX:
        message = "a step id is a letter or _ and then letters, digits, _ or -, at most 512 bytes"
        yield Problem("step-id-invalid", (*path, "id"), message, "rename the step")
    if node.kind in KINDS_LATER:
        message = f"`{node.kind}` steps are part of the language, but not of this version"
        yield Problem("kind-not-yet", path, message, "use `call`, `fail` or `succeed`")
    elif node.kind not in KINDS:
        message = f"there is no step kind `{node.kind}`"
        yield Problem("kind-unknown", path, message, "use `call`, `fail` or `succeed`")
    else:
        yield from _fields(node, path)


def _fields(node: Node, path: Path) -> Iterator[Problem]:
    leaf = node.kind in LEAF_KINDS
    if node.kind == "call" and not TARGET.fullmatch(node.call or ""):
        message = "`call` names a Python function as `module:function`"
        yield Problem("call-invalid", (*path, "call"), message, "e.g. `call: shop:charge`")
    for name, given, where in (
        ("call", node.call is not None, leaf),
        ("with", node.inputs is not None, leaf),
        ("retry", node.retry is not None, leaf),
        ("timeout", node.timeout_ms is not None, leaf),
        ("effect", node.effect is not None, leaf),
        ("output", node.output_schema is not None, leaf),
        ("fail", node.message is not None, node.kind == "fail"),
        ("succeed", node.value is not UNSET, node.kind == "succeed"),
    ):
        if given and not where:
            message = f"a `{node.kind}` step has no `{name}`"
            yield Problem("field-not-here", (*path, name), message, "leave it out")
    if node.timeout_ms is not None and not 1 <= node.timeout_ms <= DELAY_MAX_MS:
        message = "a timeout is longer than 0 and at most 100 years"
        yield Problem("timeout-out-of-range", (*path, "timeout"), message, "e.g. `timeout: 30s`")
    if node.effect is not None and node.effect not in EFFECTS:
        message = f"an effect is one of {', '.join(EFFECTS)}"
        yield Problem("effect-unknown", (*path, "effect"), message, "`mutating` promises nothing")
    if node.retry is not None:
        yield from _retry(node, node.retry, (*path, "retry"))


def _retry(node: Node, retry: Retry, path: Path) -> Iterator[Problem]:
    counts = (
        ("max_attempts", retry.max_attempts, 1, ATTEMPTS_MAX),
        ("interruptions_max", retry.interruptions_max, 0, ATTEMPTS_MAX),
        ("backoff", retry.backoff_ms, 0, DELAY_MAX_MS),
        ("backoff_max", retry.backoff_max_ms, 0, DELAY_MAX_MS),
    )
    for name, value, least, most in counts:
        if value is not None and (isinstance(value, bool) or not least <= value <= most):
            message = f"`{name}` must be from {least} to {most}"
            yield Problem("retry-out-of-range", (*path, name), message, "leave it out")
    if not math.isfinite(retry.factor) or retry.factor < 0:
        message = "`factor` is a number from 0 up"
        yield Problem("retry-out-of-range", (*path, "factor"), message, "leave it out: 2")
    for kind in retry.on or ():
        if kind not in FAILURE_KINDS:
            message = f"`{kind}` is not a kind of failure: {', '.join(FAILURE_KINDS)}"
            yield Problem("retry-kind-unknown", (*path, "on"), message, "use one of these")
    wrong = None if node.effect not in EFFECTS else retry_problem(node.effect, retry)
    if wrong is not None:
        yield Problem("retry-repeats-effect", (*path, "on"), wrong, "see the effect classes")


def _needs(node: Node, at: int, places: dict[str, int]) -> Iterator[Problem]:
    for position, need in enumerate(node.needs):
        path: Path = ("steps", at, "needs", position)
        if need not in places:
            message = f"`{node.id}` needs `{need}`, which is no step of this workflow"
            yield Problem("needs-unknown", path, message, "correct the id, or remove it")
        elif need == node.id:
            message = f"`{node.id}` needs itself"
            yield Problem("needs-itself", path, message, "remove it")
        elif need in node.needs[:position]:
            message = f"`{need}` is named twice"
            yield Problem("needs-repeated", path, message, "remove one of them")


def _ancestors(nodes: tuple[Node, ...], places: dict[str, int]) -> list[int] | Problem:
    """For each node a bit set of the nodes that are over before it begins, or the cycle."""
    missing = [len(node.needs) for node in nodes]
    followers: list[list[int]] = [[] for _ in nodes]
    for at, node in enumerate(nodes):
        for need in node.needs:
            followers[places[need]].append(at)
    ancestors = [0] * len(nodes)
    ready = [at for at, count in enumerate(missing) if count == 0]
    done = 0
    while ready:
        at = ready.pop()
        done += 1
        for follower in followers[at]:
            ancestors[follower] |= ancestors[at] | (1 << at)
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    if done == len(nodes):
        return ancestors
    stuck = [at for at, count in enumerate(missing) if count]
    return _cycle(nodes, places, set(stuck))


def _cycle(nodes: tuple[Node, ...], places: dict[str, int], stuck: set[int]) -> Problem:
    at = min(stuck)
    trail: list[int] = []
    while at not in trail:
        trail.append(at)
        at = next(places[need] for need in nodes[at].needs if places[need] in stuck)
    loop = trail[trail.index(at) :]
    shown = " needs ".join(f"`{nodes[place].id}`" for place in [*loop, loop[0]][:8])
    return Problem(
        "needs-cycle",
        ("steps", min(loop), "needs"),
        f"these steps wait for each other: {shown}",
        "remove one of these needs",
    )


def _references(
    definition: Definition, places: dict[str, int], ancestors: list[int]
) -> Iterator[Problem]:
    everything = (1 << len(ancestors)) - 1
    names = names_of(definition)
    for at, node in enumerate(definition.root.nodes):
        for name, value in _templates(node):
            yield from _reads(value, ("steps", at, name), places, ancestors[at], names)
    if definition.output is not UNSET:
        yield from _reads(definition.output, ("output",), places, everything, names)


def _templates(node: Node) -> Iterator[tuple[str, Json]]:
    if node.when is not None:
        yield "when", node.when
    if node.inputs is not None:
        yield "with", dict(node.inputs)
    if node.message is not None:
        yield "fail", node.message
    if node.value is not UNSET:
        yield "succeed", node.value


def _reads(
    value: Json, path: Path, places: dict[str, int], before: int, names: Names
) -> Iterator[Problem]:
    try:
        template = compile_field(value, ".".join(map(str, path)), names)
    except ExpressionFailed as error:
        yield Problem("expression-invalid", path, str(error), "see the expression rules")
        return
    for step in sorted(template.steps):
        place = places.get(step)
        if place is None:
            message = f"`steps.{step}` is no step of this workflow"
            yield Problem("reference-unknown", path, message, "correct the id")
        elif not before >> place & 1:
            message = f"`steps.{step}` is not surely over when this is read"
            yield Problem("reference-not-before", path, message, f"add `{step}` to `needs`")
