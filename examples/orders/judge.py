"""The comparison: what the ledgers say against what should have happened.

It believes the servers' ledgers and the two CSV files; it reads what the engine says only to
check that too. It imports nothing of the engine and none of the shop's rules.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from home import REFUSALS_CSV, Home
from ledger import read_ledger

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything a verdict rests on.

    `files` holds the digest of each invoice file, `told` the engine's word on each order, both by
    the order's number.
    """

    numbers: tuple[str, ...]
    refusals: Mapping[str, str]
    charges: Lines
    messages: Lines
    files: Mapping[str, str]
    told: Mapping[str, Mapping[str, Any]]
    summary: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found, and a sentence for each thing that is not as it should be.

    `wrong` is what is neither a duplicate nor lost.
    """

    orders: int
    refused: int
    accepted: int
    charges: int
    files: int
    messages: int
    duplicates: tuple[str, ...]
    lost: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not (self.duplicates or self.lost or self.wrong)


def gather(home: Home) -> Evidence:
    """Read the evidence of one pass. What is missing is empty."""
    ended = json.loads(home.ended.read_text(encoding="utf-8")) if home.ended.exists() else {}
    numbers = tuple(line["number"] for line in _read_csv(home.orders))
    refusals = {line["number"]: line["problem"] for line in _read_csv(REFUSALS_CSV)}
    return Evidence(
        numbers=numbers,
        refusals={number: refusals[number] for number in numbers if number in refusals},
        charges=read_ledger(home.charges),
        messages=read_ledger(home.messages),
        files={
            path.stem: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in home.invoices.glob("*.txt")
        },
        told={run["number"]: run for run in ended.get("runs", [])},
        summary=ended.get("summary", {}),
    )


def compare(evidence: Evidence) -> Comparison:
    """Count what happened and find everything that is not as it should be."""
    accepted = [number for number in evidence.numbers if number not in evidence.refusals]
    return Comparison(
        orders=len(evidence.numbers),
        refused=sum(told["status"] == "failed" for told in evidence.told.values()),
        accepted=len(accepted),
        charges=len(evidence.charges),
        files=len(evidence.files),
        messages=len(evidence.messages),
        duplicates=tuple(_duplicates(evidence)),
        lost=tuple(_lost(evidence, accepted)),
        wrong=(*_uncalled_for(evidence, accepted), *_untrue(evidence, accepted)),
    )


def amounts(evidence: Evidence) -> dict[str, tuple[int, str]]:
    """Return what each order was charged, by the payment server's ledger."""
    return {line["reference"]: (line["amount"], line["currency"]) for line in evidence.charges}


def _duplicates(evidence: Evidence) -> Iterable[str]:
    for verb, lines in (("charged", evidence.charges), ("invoiced", evidence.messages)):
        for number, times in _times(lines).items():
            yield from (f"{number} was {verb} again" for _ in range(times - 1))


def _lost(evidence: Evidence, accepted: Sequence[str]) -> Iterable[str]:
    """Yield each thing that has not happened: a run's end, a charge, a message."""
    charged, invoiced = _times(evidence.charges), _times(evidence.messages)
    for number in evidence.numbers:
        if number not in evidence.told:
            yield f"{number} has not ended"
    for number in accepted:
        if not charged[number]:
            yield f"{number} was never charged"
        if not invoiced[number]:
            yield f"{number} was never invoiced"


def _uncalled_for(evidence: Evidence, accepted: Sequence[str]) -> Iterable[str]:
    touched = {*_times(evidence.charges), *_times(evidence.messages), *evidence.files}
    for number in sorted(touched.difference(accepted)):
        yield f"{number} is to be refused, and was charged or invoiced"


def _untrue(evidence: Evidence, accepted: Sequence[str]) -> Iterable[str]:
    """Yield where the engine's word, the files and the ledgers contradict each other."""
    charged = amounts(evidence)
    sent = {line["reference"]: line["digest"] for line in evidence.messages}
    for number in accepted:
        told = evidence.told.get(number, {})
        if told.get("status") != "succeeded":
            yield f"{number} ended as {told.get('status')}: {told.get('problem')}"
        if (total := (told.get("total"), told.get("currency"))) != charged.get(number):
            yield f"{number}: the engine says {total}, the payment ledger {charged.get(number)}"
        if evidence.files.get(number) is None or evidence.files.get(number) != sent.get(number):
            yield f"{number}: the invoice that was sent is not the one that was written"
    for number, problem in evidence.refusals.items():
        told = evidence.told.get(number, {})
        if (end := (told.get("status"), told.get("problem"))) != ("failed", problem):
            yield f"{number} is to be refused for {problem}, and ended as {end}"
    if (said := evidence.summary.get("charged")) != (sums := _sums(evidence.charges)):
        yield f"the summary says {said}, the payment ledger {sums}"
    if evidence.summary.get("refused") != dict(Counter(evidence.refusals.values())):
        yield f"the summary says {evidence.summary.get('refused')} were refused"


def _read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _times(lines: Lines) -> Counter[str]:
    return Counter(line["reference"] for line in lines)


def _sums(charges: Lines) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for line in charges:
        sums[line["currency"]] += line["amount"]
    return dict(sums)
