"""What is allowed and most likely a mistake. The compiler hands these out as warnings.

Asked only of a definition that is sound.
"""

from collections.abc import Iterator

from tallystick.core.definition import LEAF_KINDS, Definition, Node
from tallystick.core.diagnostics import Finding
from tallystick.core.order import Order, order_of
from tallystick.core.pointer import quote
from tallystick.core.references import Reference
from tallystick.core.usage import Usage, Usages


def lints(definition: Definition, used: Usages) -> list[Finding]:
    """Every warning about a sound definition."""
    nodes = definition.root.nodes
    order = order_of(nodes)
    assert isinstance(order, Order), "the definition is sound"
    skippable = _skippable(nodes, order)
    return [
        *_undeclared(nodes),
        *_unreachable(nodes, order, skippable),
        *_missing(nodes, order, skippable, used.found),
    ]


def _undeclared(nodes: tuple[Node, ...]) -> Iterator[Finding]:
    silent = [
        at for at, node in enumerate(nodes) if node.kind in LEAF_KINDS and node.effect is None
    ]
    if silent:
        what = "1 step does" if len(silent) == 1 else f"{len(silent):,} steps do"
        yield Finding(
            "effect-undeclared",
            ("steps", silent[0]),
            f"{what} not declare an effect: the decorator of the task says it, "
            "and where that is silent too it is `mutating`",
            "write `effect:` into the steps, or into `defaults`",
        )


def _skippable(nodes: tuple[Node, ...], order: Order) -> int:
    """Return the bit set of the steps that may be skipped."""
    found = 0
    for at in order.sequence:
        node = nodes[at]
        if node.when is not None or _skipped_by_needs(node, order, found):
            found |= 1 << at
    return found


def _unreachable(nodes: tuple[Node, ...], order: Order, skippable: int) -> Iterator[Finding]:
    """Tell of the steps behind each `fail` or `succeed` that is surely reached."""
    ends = 0
    for at, node in enumerate(nodes):
        if node.kind not in LEAF_KINDS and not skippable >> at & 1:
            ends |= 1 << at
    told: dict[int, list[int]] = {}
    for at in range(len(nodes)):
        if ended := order.before[at] & ends:
            told.setdefault((ended & -ended).bit_length() - 1, []).append(at)
    for end, behind in told.items():
        more = "" if len(behind) == 1 else f", nor do {len(behind) - 1:,} more"
        message = f"this step never runs: {quote(nodes[end].id)} ends the run before it{more}"
        remedy = f"remove it, or give {quote(nodes[end].id)} a `when`"
        yield Finding("step-unreachable", ("steps", behind[0]), message, remedy)


def _missing(
    nodes: tuple[Node, ...], order: Order, skippable: int, found: tuple[Usage, ...]
) -> Iterator[Finding]:
    """Tell of references to a step that may have no output while the one that refers to it runs."""
    conditions = {usage.step: _references(usage) for usage in found if usage.path[2:] == ("when",)}
    for usage in found:
        known = _references(usage) | conditions.get(usage.step, frozenset())
        tested = {it.step for it in known if it.tested}
        compared = {it.step for it in known if len(it.path) == 2}
        for step in sorted({it.step for it in _references(usage) if it.step} - tested):
            place = order.places[step]
            if _may_be_skipped(nodes, order, skippable, place, usage.step):
                yield _skipped(usage, step)
            elif nodes[place].on_failure == "continue" and step not in compared:
                yield _failed(usage, step)


def _references(usage: Usage) -> frozenset[Reference]:
    assert usage.template is not None, "the definition is sound"
    return usage.template.references


def _may_be_skipped(
    nodes: tuple[Node, ...], order: Order, skippable: int, place: int, reader: int | None
) -> bool:
    """Whether a step may be skipped although its reader (None: the run's output) is not."""
    if not skippable >> place & 1:
        return False
    if reader is None:
        return True
    if order.implied[reader] >> place & 1:
        return False
    same = nodes[reader].when is not None and nodes[reader].when == nodes[place].when
    return not same or _skipped_by_needs(nodes[place], order, skippable)


def _skipped_by_needs(node: Node, order: Order, skippable: int) -> bool:
    needs = [order.places[need] for need in node.needs]
    return node.if_skipped == "skip" and bool(needs) and all(skippable >> at & 1 for at in needs)


def _skipped(usage: Usage, step: str) -> Finding:
    return Finding(
        "reference-maybe-missing",
        usage.path,
        f"step {quote(step)} may have been skipped, and then this fails",
        f"test for it with has({Reference('steps', (step, 'output'))})",
    )


def _failed(usage: Usage, step: str) -> Finding:
    return Finding(
        "reference-maybe-missing",
        usage.path,
        f"step {quote(step)} may have failed, and then its output is null",
        f"test for it with {Reference('steps', (step, 'output'))} != null",
    )
