"""Make orders.csv and refusals.csv, the same bytes from the same seed every time.

refusals.csv lists the orders that are wrong on purpose, and why. It is what the demo expects to
see refused, said by the program that made the mistakes and not by the rules that find them.
"""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Final, TypeVar

from rules import CATALOGUE, COUNTRIES, Row

SEED: Final = 1166  # the year from which the oldest tallies of the English Exchequer were counted
ORDERS: Final = 300
FIRST_NUMBER: Final = 10_001
HOME: Final = Path(__file__).parent

T = TypeVar("T")

# Minor units of a currency for one euro cent, in permille.
RATES: Final = {"EUR": 1_000, "CHF": 950, "DKK": 7_460, "GBP": 860, "PLN": 4_280, "SEK": 11_300}
SHARES: Final = (
    ("DE",) * 7
    + ("FR",) * 4
    + ("GB",) * 4
    + ("NL", "NL", "AT", "AT", "BE", "CH", "CH", "PL", "SE", "DK")
)
NAMES: Final = {
    "AT": (("Lena", "Jakob", "Miriam", "Florian"), ("Gruber", "Huber", "Steiner", "Moser")),
    "BE": (("Lotte", "Wout", "Camille", "Bram"), ("Peeters", "Janssens", "Dubois", "Claes")),
    "CH": (("Nina", "Reto", "Livia", "Luca"), ("Keller", "Meier", "Bianchi", "Favre")),
    "DE": (
        ("Hannah", "Jonas", "Aylin", "Paul", "Svenja"),
        ("Krüger", "Yilmaz", "Schäfer", "Vogt", "Lorenz"),
    ),
    "DK": (("Freja", "Emil", "Ida"), ("Nielsen", "Sørensen", "Holm")),
    "FR": (("Chloé", "Hugo", "Inès", "Rémi"), ("Lefèvre", "Moreau", "Benali", "Girard")),
    "GB": (("Isla", "Callum", "Priya", "Owen"), ("Hughes", "Patel", "Fraser", "O'Neill")),
    "NL": (("Sanne", "Daan", "Noor"), ("de Vries", "Bakker", "van Dijk")),
    "PL": (("Zofia", "Kacper", "Maja"), ("Wójcik", "Kowalska", "Zieliński")),
    "SE": (("Alva", "Nils", "Elsa"), ("Lindqvist", "Åberg", "Sjögren")),
}
PLAIN: Final = str.maketrans("àåäâçèéëêîïóôöøśüúńł' ", "aaaaceeeeiioooosuunl__")
MAIL_HOSTS: Final = ("example.com", "example.net", "example.org", "mail.example.com")

# What is wrong, with which order, counted from the first.
MISTAKES: Final = {
    16: ("bad_quantity", "0"),
    71: ("unknown_sku", "XX-GHOST"),
    104: ("bad_email", "at"),
    139: ("bad_quantity", "-3"),
    188: ("bad_quantity", "two"),
    221: ("unknown_sku", "BK-TALLI"),
    246: ("bad_email", "space"),
    290: ("bad_currency", "USD"),
}


def make_orders() -> list[Row]:
    """Return all rows, the wrong ones among them."""
    lots = random.Random(SEED)
    rows = [_order(lots, FIRST_NUMBER + index, index) for index in range(ORDERS)]
    for index, (problem, detail) in MISTAKES.items():
        rows[index] = _spoil(rows[index], problem, detail)
    return rows


def make_refusals(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return number and problem of every wrong row, in their order."""
    return [(rows[index].number, problem) for index, (problem, _) in sorted(MISTAKES.items())]


def _order(lots: random.Random, number: int, index: int) -> Row:
    country = _pick(lots, SHARES)
    firsts, lasts = NAMES[country]
    first, last = _pick(lots, firsts), _pick(lots, lasts)
    email = f"{first}.{last}".lower().translate(PLAIN) + f"@{_pick(lots, MAIL_HOSTS)}"
    currency = COUNTRIES[country].currency
    hour, minute = 8 + index % 20 // 2, index % 2 * 30 + int(lots.random() * 30)
    placed = f"2025-03-{1 + index // 20:02d}T{hour:02d}:{minute:02d}:00Z"
    return Row(
        f"TS-{number}", placed, f"{first} {last}", email, country, currency, _items(lots, currency)
    )


def _items(lots: random.Random, currency: str) -> str:
    left = list(CATALOGUE)
    items = []
    for _ in range(1 + int(lots.random() ** 2 * 5)):
        sku = left.pop(int(lots.random() * len(left)))
        many = lots.random() < 0.12
        quantity = 10 + int(lots.random() * 30) if many else 1 + int(lots.random() * 4)
        unit_price = CATALOGUE[sku].price * RATES[currency] // 1_000
        items.append(f"{sku}:{quantity}:{unit_price}")
    return ";".join(items)


def _spoil(row: Row, problem: str, detail: str) -> Row:
    first, *rest = row.items.split(";")
    sku, quantity, unit_price = first.split(":")
    match problem:
        case "bad_quantity":
            return replace(row, items=";".join((f"{sku}:{detail}:{unit_price}", *rest)))
        case "unknown_sku":
            return replace(row, items=";".join((*rest, f"{detail}:{quantity}:{unit_price}")))
        case "bad_email" if detail == "at":
            return replace(row, email=row.email.replace("@", "(at)"))
        case "bad_email":
            return replace(row, email=row.email.replace(".", " ", 1))
        case _:
            return replace(row, currency=detail)


def _pick(lots: random.Random, choices: Sequence[T]) -> T:
    # Only random() is promised to give the same numbers in every version of Python.
    return choices[int(lots.random() * len(choices))]


def read_orders(path: Path) -> list[Row]:
    """Read orders.csv."""
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(**line) for line in csv.DictReader(file)]


def write_files(folder: Path) -> None:
    """Write both files into `folder`, over what is there."""
    rows = make_orders()
    _write(folder / "orders.csv", [[f.name for f in fields(Row)], *(astuple(row) for row in rows)])
    _write(folder / "refusals.csv", [("number", "problem"), *make_refusals(rows)])


def _write(path: Path, lines: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    write_files(HOME)
    sys.stdout.write(f"{ORDERS} orders, {len(MISTAKES)} of them wrong, in {HOME}\n")
