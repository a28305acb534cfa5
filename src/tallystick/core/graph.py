"""The static side of a run: what a definition implies, worked out once and shared by all its runs.

A `Plan` knows for every node what it needs, what follows it, and who still reads its output, so
that a transition touches only the neighbours of what changed. A `Bound` plan adds what was bound at
admission: for every leaf the `Terms` its attempts are prepared under.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from tallystick.core.canonical import definition_bytes, definition_digest
from tallystick.core.definition import (
    LEAF_KINDS,
    Binding,
    Bindings,
    Definition,
    Effect,
    Node,
    Retry,
)
from tallystick.core.fields import Field, compile_field, names_of
from tallystick.core.messages import Terms
from tallystick.core.references import Names
from tallystick.core.values import decode_trusted

__all__ = [
    "RETRIED_BY_CLASS",
    "Bound",
    "BoundNode",
    "Plan",
    "PlannedNode",
    "definition_bytes",
    "definition_digest",
    "retry_problem",
    "retry_refusal",
]

if TYPE_CHECKING:
    from tallystick.core.schemas import Validator

_encode = msgspec.json.Encoder(order="sorted").encode

RETRIED_BY_CLASS: dict[Effect, frozenset[str]] = {
    "read_only": frozenset({"timeout", "error", "exit", "status", "unavailable"}),
    "idempotent": frozenset({"timeout", "error", "exit", "status", "unavailable"}),
    "transactional": frozenset({"timeout", "error", "exit", "status", "conflict", "unavailable"}),
    "mutating": frozenset({"unavailable"}),
}
"""What an automatic retry may follow, by effect class. Source: design §4.2."""


class PlannedNode(msgspec.Struct, frozen=True):
    """A node with its place in the graph. `path` is its node path; `needs`, `followers` are paths.

    reads  paths of the steps whose outputs its expressions use
    """

    path: str
    node: Node
    leaf: bool
    needs: tuple[str, ...]
    followers: tuple[str, ...]
    reads: frozenset[str]
    when: Field | None
    inputs: Field | None
    message: Field | None
    value: Field | None


class Plan:
    """A definition, ready to run. Build one per digest and share it; it never changes."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.body = definition_bytes(definition)
        self.digest = definition_digest(definition)
        names = names_of(definition)
        self.nodes = _planned(definition.root.nodes, names)
        self.roots = tuple(path for path, node in self.nodes.items() if not node.needs)
        self.output = (
            None
            if definition.output is UNSET
            else compile_field(definition.output, "output", names)
        )
        self.readers = _readers(self)
        self._bound: dict[bytes, Bound] = {}
        self._validators: dict[str, Validator] = {}

    def output_problem(self, path: str, output: bytes) -> str | None:
        """Why a step's output breaks its declared schema, in one sentence, or None: it does not."""
        schema = self.nodes[path].node.output_schema
        if schema is None:
            return None
        validator = self._validators.get(path)
        if validator is None:
            from tallystick.core.schemas import Validator  # only where a schema is declared

            validator = self._validators[path] = Validator(schema, self.definition.types)
        problems = validator.validate(decode_trusted(output))
        return str(problems[0]) if problems else None

    def bind(self, bindings: Bindings) -> Bound:
        """The plan under these bindings; equal bindings share one."""
        key = _encode(bindings)
        bound = self._bound.get(key)
        if bound is None:
            # Defaults are left out by identity: only what was read back is spelled in one way.
            bindings = msgspec.json.decode(key, type=Bindings)
            bound = self._bound[key] = Bound(self, bindings, _encode(bindings))
        return bound


class BoundNode(msgspec.Struct, frozen=True):
    """The terms of a leaf, with their canonical bytes and digest (`name`: in hex)."""

    terms: Terms
    body: bytes
    digest: bytes
    name: str


class Bound:
    """A plan with the bindings of a run.

    modes  the execution modes of its leaves
    """

    def __init__(self, plan: Plan, bindings: Bindings, body: bytes) -> None:
        self.plan = plan
        self.bindings = bindings
        self.body = body
        leaves = [node for node in plan.nodes.values() if node.leaf]
        self.modes: frozenset[str] = frozenset(
            _binding(bindings, leaf.node, leaf.path).mode for leaf in leaves
        )
        self._leaves: dict[str, BoundNode] = {}

    def leaf(self, path: str) -> BoundNode:
        """What attempts of this leaf are prepared under."""
        found = self._leaves.get(path)
        if found is None:
            terms = _terms(self.plan, self.plan.nodes[path].node, self.bindings, path)
            body = _encode(terms)
            digest = hashlib.sha256(b"tcj1:terms\n" + body).digest()
            found = BoundNode(terms, body, digest, digest.hex())
            self._leaves[path] = found
        return found


def _planned(nodes: tuple[Node, ...], names: Names) -> dict[str, PlannedNode]:
    followers: dict[str, list[str]] = {node.id: [] for node in nodes}
    for node in nodes:
        for need in node.needs:
            followers[need].append(node.id)
    return {node.id: _plan_node(node, tuple(followers[node.id]), names) for node in nodes}


def _plan_node(node: Node, followers: tuple[str, ...], names: Names) -> PlannedNode:
    field = f"steps.{node.id}"
    when = None if node.when is None else compile_field(node.when, f"{field}.when", names)
    inputs = (
        None if node.inputs is None else compile_field(dict(node.inputs), f"{field}.with", names)
    )
    message = (
        None if node.message is None else compile_field(node.message, f"{field}.message", names)
    )
    value = None if node.value is UNSET else compile_field(node.value, f"{field}.output", names)
    parts = [part for part in (when, inputs, message, value) if part is not None]
    reads = frozenset().union(*(part.steps for part in parts))
    leaf = node.kind in LEAF_KINDS
    return PlannedNode(
        node.id, node, leaf, node.needs, followers, reads, when, inputs, message, value
    )


def _readers(plan: Plan) -> dict[str, int]:
    """How many nodes (and the run's output) read each step's output."""
    counts: dict[str, int] = {}
    sources: Iterable[frozenset[str]] = [node.reads for node in plan.nodes.values()]
    for reads in [*sources, plan.output.steps if plan.output else frozenset()]:
        for path in reads:
            counts[path] = counts.get(path, 0) + 1
    return counts


def _binding(bindings: Bindings, node: Node, path: str) -> Binding:
    """The binding of a leaf; what admission left out is what the definition says."""
    return bindings.steps.get(path) or Binding(
        task=node.call or "", effect=node.effect or "mutating"
    )


def _terms(plan: Plan, node: Node, bindings: Bindings, path: str) -> Terms:
    binding = _binding(bindings, node, path)
    retry = node.retry or Retry()
    on = retry.on if retry.on is not None else tuple(sorted(RETRIED_BY_CLASS[binding.effect]))
    return Terms(
        definition=plan.digest.hex(),
        executor="function",
        contract=binding.contract,
        effect=binding.effect,
        kind=node.kind,
        max_attempts=binding.max_attempts,
        on=on,
        backoff_ms=retry.backoff_ms,
        factor=retry.factor,
        backoff_max_ms=retry.backoff_max_ms,
        interruptions_max=retry.interruptions_max,
        on_unknown=node.on_unknown,
        timeout_ms=node.timeout_ms,
        mode=binding.mode,
        task=binding.task,
        root=bindings.root,
    )


def retry_problem(effect: Effect, retry: Retry) -> str | None:
    """Why this combination of class and policy is refused, with the remedy; None if it is sound.

    Checked when a file is compiled and again at admission, when the effect is bound.
    """
    refused = retry_refusal(effect, retry)
    return None if refused is None else f"{refused[0]}: {refused[1]}"


def retry_refusal(effect: Effect, retry: Retry) -> tuple[str, str] | None:
    """Return why the combination is refused and the remedy, apart; None if it is sound."""
    wrong = sorted(set(retry.on or ()) - RETRIED_BY_CLASS[effect])
    if not wrong:
        return None
    allowed = ", ".join(sorted(RETRIED_BY_CLASS[effect]))
    step = f"{'an' if effect == 'idempotent' else 'a'} `{effect}` step"
    return (
        f"{step} cannot be retried on {', '.join(wrong)}: it might do twice what it did once",
        f"retry it on {allowed}, or declare the effect that is true",
    )
