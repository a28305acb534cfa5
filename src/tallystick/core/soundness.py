"""Is this definition one that can run? Everything that is wrong with it, at once.

These are the rules of structure, and there is no other place for them: the compiler asks before it
hands a definition out, and adds the places in the source; a client asks for a definition that was
built in Python. The paths are those of the language: `steps`, position, field.

What is no rule, but most likely a mistake, is in `lints`.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import UNSET

from tallystick.core.definition import (
    ATTEMPTS_MAX,
    EFFECTS,
    FAILURE_KINDS,
    LANGUAGE_VERSION,
    LEAF_KINDS,
    NODES_MAX,
    Definition,
    Node,
    Retry,
)
from tallystick.core.diagnostics import Finding
from tallystick.core.graph import retry_refusal
from tallystick.core.instants import DURATION_MAX
from tallystick.core.nearest import Nearest
from tallystick.core.order import Order, order_of, places_of
from tallystick.core.pointer import Path, quote
from tallystick.core.schema_check import SchemaProblem, check_schema
from tallystick.core.usage import Usage, Usages, usages
from tallystick.core.values import ValueRefused, encode

ID: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
ID_BYTES_MAX: Final = 512
NAME_BYTES_MAX: Final = 512
TARGET: Final = re.compile(
    r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*", re.ASCII
)
TARGET_BYTES_MAX: Final = 1_024
CONCURRENCY_MAX: Final = 1_000_000
SUGGEST_AMONG_MAX: Final = 1_000
"""In workflows of more steps, no step is suggested for a misspelled one."""

KINDS: Final = ("call", "fail", "succeed")
KINDS_LATER: Final = frozenset({
    "run", "http", "agent", "workflow", "approve", "ask", "wait", "branch", "map", "repeat",
    "group", "always",
})  # fmt: skip
"""Kinds of the language that this version refuses by name. Source: design §9."""

_USE_KINDS: Final = "this version has `call`, `fail` and `succeed`"


def problems(definition: Definition) -> list[Finding]:
    """Every problem of a definition. Empty: it can run."""
    return examine(definition)[0]


def examine(definition: Definition) -> tuple[list[Finding], Usages]:
    """Every problem of a definition, and what its expressions use."""
    nodes = definition.root.nodes
    found = [*_head(definition), *_limits(definition), *_schemas(definition)]
    if not nodes:
        found.append(Finding("no-steps", ("steps",), "a workflow has at least one step"))
    if len(nodes) > NODES_MAX:
        message = f"{len(nodes):,} steps; a workflow has at most {NODES_MAX:,}"
        found.append(Finding("too-many-steps", ("steps",), message, "split the workflow"))
        return found, Usages((), ())
    for at, node in enumerate(nodes):
        found.extend(_node(node, ("steps", at)))
    found.extend(_repeated(nodes))
    needs = list(_needs(nodes))
    order = order_of(nodes)
    if isinstance(order, Finding):
        needs.append(order)
    used = usages(definition)
    # With a wrong need the order is not known, and what follows from it would be noise.
    known = None if needs or isinstance(order, Finding) else order
    for usage in used.found:
        found.extend(_usage(usage, nodes, known))
    found.extend(_conditions_without_expression(nodes))
    return [*found, *needs, *used.problems], used


# The head of the definition.


def _head(definition: Definition) -> Iterator[Finding]:
    name = definition.workflow
    if definition.tally != LANGUAGE_VERSION:
        yield Finding(
            "version-unsupported",
            ("tally",),
            f"this program knows version {LANGUAGE_VERSION} of the language",
            f"write `tally: {LANGUAGE_VERSION}`, or use a program that knows the other version",
        )
    if not name or name != name.strip() or not name.isprintable() or _bytes(name) > NAME_BYTES_MAX:
        message = f"a workflow name is a printable text of 1 to {NAME_BYTES_MAX} bytes"
        yield Finding("workflow-name-invalid", ("workflow",), message, "e.g. `workflow: release`")
    for type_name in definition.types:
        if not _is_id(type_name):
            message = "the name of a type is a letter or _ and then letters, digits, _ or -"
            yield Finding("type-name-invalid", ("types", type_name), message, "rename the type")


def _limits(definition: Definition) -> Iterator[Finding]:
    limits = definition.limits
    yield from _duration(limits.duration_ms, ("limits", "duration"), least=1)
    yield from _number(limits.attempts, ("limits", "attempts"), 1, ATTEMPTS_MAX)
    yield from _number(limits.concurrency, ("limits", "concurrency"), 1, CONCURRENCY_MAX)


def _schemas(definition: Definition) -> Iterator[Finding]:
    """Check every declared schema, equal ones once."""
    known: dict[bytes, tuple[SchemaProblem, ...]] = {}
    declared: list[tuple[Path, object]] = [(("input",), definition.input)]
    declared += [(("types", name), schema) for name, schema in definition.types.items()]
    declared += [
        (("steps", at, "output"), node.output_schema)
        for at, node in enumerate(definition.root.nodes)
        if node.output_schema is not None
    ]
    for path, schema in declared:
        for problem in _checked(schema, definition.types, known) if schema is not None else ():
            yield Finding(problem.code, (*path, *problem.path), problem.message, problem.remedy)


def _checked(
    schema: object, types: Mapping[str, object], known: dict[bytes, tuple[SchemaProblem, ...]]
) -> tuple[SchemaProblem, ...]:
    try:
        key = encode(schema)
    except ValueRefused:
        return check_schema(schema, types)
    found = known.get(key)
    if found is None:
        found = known[key] = check_schema(schema, types)
    return found


# One step.


def _node(node: Node, path: Path) -> Iterator[Finding]:
    if not _is_id(node.id):
        message = (
            f"a step id is a letter or _ and then letters, digits, _ or -, "
            f"at most {ID_BYTES_MAX} bytes"
        )
        yield Finding("step-id-invalid", (*path, "id"), message, "rename the step")
    yield from _word("on_failure", node.on_failure, ("fail", "continue"), path)
    yield from _word("if_skipped", node.if_skipped, ("skip", "run"), path)
    if node.kind in KINDS_LATER:
        message = f"`{node.kind}` steps are part of the language, but not of this version"
        yield Finding("kind-not-yet", (*path, node.kind), message, _USE_KINDS)
    elif node.kind not in KINDS:
        message = f"there is no step kind {quote(node.kind)}"
        yield Finding("kind-unknown", (*path, node.kind), message, _USE_KINDS)
    else:
        yield from _misplaced(node, path)
        yield from _work(node, path)


def _misplaced(node: Node, path: Path) -> Iterator[Finding]:
    """Fields that belong to another kind of step."""
    leaf = node.kind in LEAF_KINDS
    for name, given, fits in (
        ("call", node.call is not None, leaf),
        ("with", node.inputs is not None, leaf),
        ("retry", node.retry is not None, leaf),
        ("timeout", node.timeout_ms is not None, leaf),
        ("effect", node.effect is not None, leaf),
        ("output", node.output_schema is not None, leaf),
        ("fail", node.message is not None, node.kind == "fail"),
        ("succeed", node.value is not UNSET, node.kind == "succeed"),
    ):
        if given and not fits:
            message = f"a `{node.kind}` step has no `{name}`"
            yield Finding("field-not-here", (*path, name), message, "remove it")


def _work(node: Node, path: Path) -> Iterator[Finding]:
    target = node.call or ""
    wrong = not TARGET.fullmatch(target) or len(target) > TARGET_BYTES_MAX
    if node.kind == "call" and wrong:
        message = "`call` names a Python function as `module:function`"
        yield Finding("call-invalid", (*path, "call"), message, 'e.g. `call: "shop:charge"`')
    yield from _duration(node.timeout_ms, (*path, "timeout"), least=1)
    if node.effect is not None:
        yield from _word("effect", node.effect, EFFECTS, path)
    if node.retry is not None:
        yield from _retry(node, node.retry, (*path, "retry"))


def _retry(node: Node, retry: Retry, path: Path) -> Iterator[Finding]:
    yield from _number(retry.max_attempts, (*path, "max_attempts"), 1, ATTEMPTS_MAX)
    yield from _number(retry.interruptions_max, (*path, "interruptions_max"), 0, ATTEMPTS_MAX)
    yield from _duration(retry.backoff_ms, (*path, "backoff"), least=0)
    yield from _duration(retry.backoff_max_ms, (*path, "backoff_max"), least=0)
    if not math.isfinite(retry.factor) or retry.factor < 0:
        message = "`factor` is a finite number from 0 up"
        yield Finding("out-of-range", (*path, "factor"), message, "leave it out: it is 2")
    unknown = [at for at, kind in enumerate(retry.on or ()) if kind not in FAILURE_KINDS]
    for at in unknown:
        message = f"`on` names kinds of failure: {', '.join(FAILURE_KINDS)}"
        remedy = Nearest().remedy(str((retry.on or ())[at]), FAILURE_KINDS)
        yield Finding("value-unknown", (*path, "on", at), message, remedy)
    if not unknown and node.effect in EFFECTS:
        refused = retry_refusal(node.effect, retry)
        if refused is not None:
            yield Finding("retry-repeats-effect", (*path, "on"), *refused)


def _repeated(nodes: tuple[Node, ...]) -> Iterator[Finding]:
    places = places_of(nodes)
    for at, node in enumerate(nodes):
        if places[node.id] != at:
            message = f"two steps have the id {quote(node.id)}"
            path: Path = ("steps", at, "id")
            first: Path = ("steps", places[node.id], "id")
            yield Finding("step-id-repeated", path, message, "rename one of them", first)


def _needs(nodes: tuple[Node, ...]) -> Iterator[Finding]:
    places = places_of(nodes)
    nearest = Nearest()
    for at, node in enumerate(nodes):
        seen: set[str] = set()
        for position, need in enumerate(node.needs):
            path: Path = ("steps", at, "needs", position)
            if need == node.id:
                if places[need] != at:
                    continue  # it follows a step of the same id, which is told
                yield Finding("needs-itself", path, "a step cannot need itself", "remove it")
            elif need not in places:
                message = f"no step of this workflow has the id {quote(need)}"
                options = places if len(places) <= SUGGEST_AMONG_MAX else ()
                yield Finding("needs-unknown", path, message, nearest.remedy(need, options))
            elif need in seen:
                message = f"{quote(need)} is named twice"
                yield Finding("needs-repeated", path, message, "remove one of them")
            seen.add(need)


# What expressions use.


def _usage(usage: Usage, nodes: tuple[Node, ...], order: Order | None) -> Iterator[Finding]:
    if usage.template is None:
        return
    yield from _type(usage)
    if order is None:
        return
    for step in sorted(usage.template.steps):
        place = order.places.get(step)
        if place is not None:
            yield from _reference(usage, step, place, nodes, order)


def _reference(
    usage: Usage, step: str, place: int, nodes: tuple[Node, ...], order: Order
) -> Iterator[Finding]:
    if nodes[place].kind in {"fail", "succeed"}:
        message = f"step {quote(step)} is a `{nodes[place].kind}` step and has no output"
        yield Finding("reference-no-output", usage.path, message)
    elif usage.step is not None and not order.before[usage.step] >> place & 1:
        message = f"step {quote(step)} is not surely over when this is read"
        own = usage.step == place
        remedy = "a step cannot read its own output" if own else f"add `{step}` to `needs`"
        yield Finding("reference-not-before", usage.path, message, remedy)


def _type(usage: Usage) -> Iterator[Finding]:
    """A condition must be a boolean, and the text of `fail` a text, as far as is known."""
    template = usage.template
    assert template is not None
    field = usage.path[-1] if len(usage.path) == 3 else None
    if field == "when" and template.result_type not in {"BOOL", "DYN"}:
        yield _not_boolean(usage.path, _shown(template.result_type))
    if field == "fail" and template.result_type not in {"STRING", "DYN"}:
        message = f"`fail` is a text, not {_shown(template.result_type)}"
        yield Finding("fail-not-text", usage.path, message, "put text around the expression")


def _conditions_without_expression(nodes: tuple[Node, ...]) -> Iterator[Finding]:
    for at, node in enumerate(nodes):
        if node.when is not None and "${{" not in node.when:
            yield _not_boolean(("steps", at, "when"), "a text without an expression")


def _not_boolean(path: Path, what: str) -> Finding:
    message = f"`when` is true or false, or one expression of that type, not {what}"
    return Finding("when-not-boolean", path, message, 'e.g. `when: "${{ input.paid == true }}"`')


def _shown(result_type: str) -> str:
    """Name a type of CEL in the words of JSON."""
    name = result_type.split("<")[0]
    return {"INT": "an integer", "MAP": "an object"}.get(name, f"a {name.lower()}")


# Values of one kind.


def _is_id(text: str) -> bool:
    return ID.fullmatch(text) is not None and len(text) <= ID_BYTES_MAX


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _word(name: str, value: str, words: Sequence[str], path: Path) -> Iterator[Finding]:
    if value not in words:
        message = f"`{name}` is one of {', '.join(words)}"
        yield Finding("value-unknown", (*path, name), message, Nearest().remedy(str(value), words))


def _number(value: int | None, path: Path, least: int, most: int) -> Iterator[Finding]:
    # A definition that was built in Python may hold anything here.
    if value is not None and (type(value) is not int or not least <= value <= most):
        message = f"`{path[-1]}` is an integer from {least:,} to {most:,}"
        yield Finding("out-of-range", path, message, "leave it out for the default")


def _duration(value: int | None, path: Path, *, least: int) -> Iterator[Finding]:
    if value is not None and (type(value) is not int or not least <= value <= DURATION_MAX):
        begin = "longer than 0" if least else "0 or longer"
        message = f"`{path[-1]}` is {begin} and at most 100 years"
        yield Finding("out-of-range", path, message, "leave it out for the default")
