"""What is over before a step begins: the partial order that `needs` makes.

Sets of steps are bit sets, bit n for the step at position n: ten thousand steps in a row need ten
thousand sets of up to ten thousand members, and this holds them in 12 MB.
"""

from dataclasses import dataclass

from tallystick.core.definition import Node
from tallystick.core.diagnostics import Finding


@dataclass(frozen=True, slots=True)
class Order:
    """The order of the steps of one scope.

    places    position of each step, by id; of the first where an id is repeated
    sequence  positions in an order in which each step follows its needs
    before    for each position the steps that are over before it begins
    implied   for each position the steps without which it does not run: if one of them is skipped,
              so is this one
    """

    places: dict[str, int]
    sequence: tuple[int, ...]
    before: tuple[int, ...]
    implied: tuple[int, ...]


def places_of(nodes: tuple[Node, ...]) -> dict[str, int]:
    """Return the position of each step by id; where one is repeated, the first."""
    places: dict[str, int] = {}
    for at, node in enumerate(nodes):
        places.setdefault(node.id, at)
    return places


def order_of(nodes: tuple[Node, ...]) -> Order | Finding:
    """Work out the order, or return the cycle.

    Needs that name no step, or the step itself, do not count: they are told apart from this.
    """
    places = places_of(nodes)
    needs = [
        [places[need] for need in node.needs if need in places and need != node.id]
        for node in nodes
    ]
    sequence = _sequence(needs)
    if len(sequence) < len(nodes):
        return _cycle(nodes, needs, set(range(len(nodes))) - set(sequence))
    before, implied = [0] * len(nodes), [0] * len(nodes)
    for at in sequence:
        before[at], implied[at] = _sets(nodes[at], needs[at], before, implied)
    return Order(places, tuple(sequence), tuple(before), tuple(implied))


def _sequence(needs: list[list[int]]) -> list[int]:
    missing = [len(mine) for mine in needs]
    followers: list[list[int]] = [[] for _ in needs]
    for at, mine in enumerate(needs):
        for need in mine:
            followers[need].append(at)
    sequence = [at for at, count in enumerate(missing) if count == 0]
    for at in sequence:  # it grows while it is read
        for follower in followers[at]:
            missing[follower] -= 1
            if missing[follower] == 0:
                sequence.append(follower)
    return sequence


def _sets(node: Node, needs: list[int], before: list[int], implied: list[int]) -> tuple[int, int]:
    over, without = 0, -1
    for need in needs:
        over |= before[need] | 1 << need
        without &= implied[need] | 1 << need
    return over, without if needs and node.if_skipped == "skip" else 0


def _cycle(nodes: tuple[Node, ...], needs: list[list[int]], stuck: set[int]) -> Finding:
    at = min(stuck)
    trail: dict[int, None] = {}
    while at not in trail:
        trail[at] = None
        at = next(need for need in needs[at] if need in stuck)
    steps = list(trail)
    loop = steps[steps.index(at) :]
    first = loop.index(min(loop))
    loop = loop[first:] + loop[:first]
    shown = " needs ".join(f"`{nodes[place].id}`" for place in [*loop, loop[0]][:8])
    more = " …" if len(loop) > 7 else ""
    return Finding(
        "needs-cycle",
        ("steps", loop[0], "needs"),
        f"these steps wait for each other: {shown}{more}",
        "remove one of these needs",
    )
