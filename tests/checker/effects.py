"""What really happened outside, held against what the ledger says.

The effect log has one JSON object per line, written by whoever caused the effect, at the moment it
was caused:

    identity   the idempotency key that the outside saw, 64 hex digits
    dispatch   which hand-over it was, where the outside was told
    run, node, instance, attempt     where known; then the identity is computed from them
    on_disk    where the writer looked into the database at that moment: was this dispatch there?

Anything else in a line is for people.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.checker import formulas, violation
from tests.checker.replay import Attempt, Told
from tests.checker.violation import Violation

Effect = dict[str, Any]
REPEATABLE = {"read_only", "transactional"}


@dataclass(frozen=True, slots=True)
class Known:
    """The attempt that an identity belongs to, as the events tell it."""

    run: str
    attempt: Attempt
    effect: str


def read(path: str | Path) -> list[Effect]:
    """Read an effect log. A last line without its end was never finished and is left out.

    Raises ValueError for any other line that is not JSON.
    """
    lines = Path(path).read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def identities(told: Iterable[Told], classes: dict[str, dict]) -> dict[str, Known]:
    """Every attempt that the events know, by identity."""
    return {
        formulas.identity(run.run, a.node, a.instance, a.number).hex(): Known(
            run.run, a, classes[run.run].get((a.node, a.instance, a.number), "mutating")
        )
        for run in told
        for a in run.attempts
    }


def judge(effects: list[Effect], known: dict[str, Known]) -> Iterator[Violation]:
    """Nothing unannounced, nothing twice that may not be, nothing denied that happened."""
    by_visit: dict[tuple[str, str, str], list[Known]] = defaultdict(list)
    dispatches: Counter[tuple[str, int]] = Counter()
    for line, effect in enumerate(effects, 1):
        where = f"effect {line}"
        yield from _named(effect, where)
        attempt = known.get(effect["identity"])
        if attempt is None:
            run, key = effect.get("run", ""), effect["identity"][:12]
            yield Violation("effect-without-intent", run, where, f"no intent bears the key {key}…")
            continue
        by_visit[attempt.run, attempt.attempt.node, attempt.attempt.instance].append(attempt)
        yield from _dispatch(effect, attempt, where, dispatches)
        yield from _denied(attempt, where)
    for visits in by_visit.values():
        yield from _repeated(visits)


def _named(effect: Effect, where: str) -> Iterator[Violation]:
    """The key that the outside saw is the one that follows from where the attempt stands."""
    if not {"run", "node", "attempt"} <= effect.keys():
        return
    place = effect["run"], effect["node"], effect.get("instance", ""), effect["attempt"]
    if formulas.identity(*place).hex() != effect["identity"]:
        name = violation.attempt(*place[1:])
        yield Violation("effect-key", effect["run"], where, f"is not the key of {name}")


def _dispatch(effect: Effect, known: Known, where: str, seen: Counter) -> Iterator[Violation]:
    """Each hand-over has a number of its own, on disk before the call."""
    if effect.get("on_disk") is False:
        yield Violation("effect-before-intent", known.run, where, "its dispatch was not on disk")
    number = effect.get("dispatch")
    if number is None:
        return
    if number > known.attempt.dispatch:
        detail = f"dispatch {number} of {known.attempt.name} was never recorded"
        yield Violation("effect-without-dispatch", known.run, where, detail)
    seen[effect["identity"], number] += 1
    if seen[effect["identity"], number] > 1:
        detail = f"dispatch {number} of {known.attempt.name} was handed over more than once"
        yield Violation("dispatch-repeated", known.run, where, detail)


def _denied(known: Known, where: str) -> Iterator[Violation]:
    """What happened is never recorded as not having happened, unless a person said so (S11)."""
    attempt = known.attempt
    if attempt.decisions or known.effect in REPEATABLE:
        return
    if attempt.abandoned_at is not None:
        detail = f"{attempt.name} is recorded as never begun"
        yield Violation("effect-denied", known.run, where, detail)
    if attempt.outcome is not None and attempt.effect == "none":
        detail = f"{attempt.name} is recorded as {attempt.outcome} without effect"
        yield Violation("effect-denied", known.run, where, detail)


def _repeated(effects: list[Known]) -> Iterator[Violation]:
    """One visit's effects, in the order in which they happened, against its effect class."""
    first = effects[0]
    for later in effects[1:]:
        permitted = "never_happened" in first.attempt.decisions
        same_key = later.attempt.number == first.attempt.number
        match later.effect:
            case "read_only" | "transactional":
                pass
            case "idempotent":
                if not (same_key or permitted):
                    detail = f"repeated under another key than {first.attempt.name}"
                    yield Violation("effect-key-changed", first.run, later.attempt.name, detail)
            case _:
                if same_key or not permitted:
                    detail = "a mutating operation happened again, without proof or permission"
                    yield Violation("effect-repeated", first.run, later.attempt.name, detail)
        first = later


def complete(effects: list[Effect], known: dict[str, Known]) -> Iterator[Violation]:
    """Where every task logs its effect: what succeeded did happen."""
    happened = {effect["identity"] for effect in effects}
    for identity, of in known.items():
        if of.attempt.outcome == "succeeded" and identity not in happened:
            detail = "is recorded as succeeded and never happened"
            yield Violation("effect-missing", of.run, of.attempt.name, detail)


def applied(rows: list[str], known: dict[str, Known]) -> Iterator[Violation]:
    """Transactional effects are in the database exactly if their attempt succeeded, once."""
    count = Counter(rows)
    for identity, number in count.items():
        if identity not in known:
            yield Violation("applied-without-intent", "", identity[:12], f"{number} rows")
    for identity, of in known.items():
        expected = int(of.attempt.outcome == "succeeded")
        if of.effect == "transactional" and count[identity] != expected:
            detail = f"{count[identity]} rows in the user's table, {expected} expected"
            yield Violation("applied", of.run, of.attempt.name, detail)
