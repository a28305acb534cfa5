"""What the shop sells, to whom, and for how much: values and pure functions.

Money is whole minor units (cents, pence, oere) of the order's own currency; rates are in
permille. Nothing here reads a clock, a file or a network, so all of it can be repeated at will.
The tax rates are examples, not advice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

VOLUME_QUANTITY: Final = 10
VOLUME_DISCOUNT_PERMILLE: Final = 50
QUANTITY_MAX: Final = 500
UNIT_PRICE_MAX: Final = 1_000_000
ITEMS_MAX: Final = 20
NUMBER: Final = re.compile(r"TS-[0-9]{5}")
EMAIL: Final = re.compile(r"[A-Za-z0-9._+-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
WHOLE: Final = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Product:
    """`price` is the list price in euro cents."""

    title: str
    weight_g: int
    price: int
    reduced_tax: bool = False


@dataclass(frozen=True, slots=True)
class Country:
    """How a country pays and is taxed."""

    currency: str
    tax_permille: int
    reduced_tax_permille: int


@dataclass(frozen=True, slots=True)
class Postage:
    """In minor units of one currency; goods worth `free_from` or more travel free."""

    base: int
    per_kg: int
    free_from: int


CATALOGUE: Final = {
    "BK-FIELD": Product("Field notebook, dotted, A5", 310, 1290),
    "BK-LEDG": Product("Ledger book, 96 leaves", 620, 2450),
    "BK-TALLY": Product("Tally sticks: a history", 540, 2990, reduced_tax=True),
    "BK-KNOTS": Product("Knots and numbers", 480, 1890, reduced_tax=True),
    "PN-BRASS": Product("Brass pen", 45, 3900),
    "PN-REFIL": Product("Refill, blue", 8, 390),
    "PN-SLATE": Product("Slate pencil, set of 6", 60, 790),
    "IN-IRON": Product("Iron gall ink, 50 ml", 140, 1490),
    "ST-HAZEL": Product("Hazel tally stick, blank", 90, 690),
    "ST-SPLIT": Product("Splitting knife", 260, 5400),
    "MG-CHALK": Product("Mug, chalk white", 380, 1450),
    "TO-COTTN": Product("Cotton tote", 150, 1190),
}
COUNTRIES: Final = {
    "AT": Country("EUR", 200, 100),
    "BE": Country("EUR", 210, 60),
    "CH": Country("CHF", 81, 26),
    "DE": Country("EUR", 190, 70),
    "DK": Country("DKK", 250, 250),
    "FR": Country("EUR", 200, 55),
    "GB": Country("GBP", 200, 0),
    "NL": Country("EUR", 210, 90),
    "PL": Country("PLN", 230, 50),
    "SE": Country("SEK", 250, 60),
}
POSTAGE: Final = {
    "EUR": Postage(490, 120, 7_500),
    "CHF": Postage(700, 150, 9_000),
    "DKK": Postage(4_900, 900, 60_000),
    "GBP": Postage(420, 100, 6_500),
    "PLN": Postage(1_490, 400, 30_000),
    "SEK": Postage(5_900, 1_200, 80_000),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of orders.csv as it stands there: text, not yet believed."""

    number: str
    placed: str
    customer: str
    email: str
    country: str
    currency: str
    items: str


@dataclass(frozen=True, slots=True)
class Item:
    """One article of an order."""

    sku: str
    quantity: int
    unit_price: int


@dataclass(frozen=True, slots=True)
class Order:
    """A row that was believed."""

    number: str
    placed: str
    customer: str
    email: str
    country: str
    currency: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Either an order, or the problem that refuses it: a code and a sentence.

    `order` is None, or `problem` and `reason` are empty.
    """

    order: Order | None
    problem: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Price:
    """`total` = `goods` - `discount` + `postage` + `tax`."""

    goods: int
    discount: int
    postage: int
    tax: int
    total: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """A charge that was made."""

    charge_id: str
    amount: int
    currency: str


@dataclass(frozen=True, slots=True)
class Invoice:
    """A file in the invoice folder; `digest` is the SHA-256 of its bytes."""

    file: str
    digest: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was sent; `digest` is that of the invoice in it."""

    message_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one order: `total` was charged, or `problem` says why not."""

    number: str
    country: str
    currency: str
    total: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """`charged` by currency, `countries` counts invoiced orders, `refused` counts by problem."""

    orders: int
    invoiced: int
    charged: dict[str, int]
    countries: dict[str, int]
    refused: dict[str, int]


class ProblemError(ValueError):
    """The row is no order.

    `code` is one of bad_number, bad_email, bad_country, bad_currency, bad_items, unknown_sku,
    bad_quantity, bad_price.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def judge_row(row: Row) -> Verdict:
    """Read a row, or say which rule it breaks first."""
    try:
        return Verdict(read_row(row))
    except ProblemError as problem:
        return Verdict(None, problem.code, problem.reason)


def read_row(row: Row) -> Order:
    """Return the order that `row` describes. Raises `ProblemError`."""
    if not NUMBER.fullmatch(row.number):
        raise ProblemError("bad_number", "an order number looks like TS-10001")
    if not EMAIL.fullmatch(row.email):
        raise ProblemError("bad_email", "the e-mail address cannot be written to")
    country = COUNTRIES.get(row.country)
    if country is None:
        raise ProblemError("bad_country", f"the shop does not deliver to {row.country!r}")
    if row.currency != country.currency:
        raise ProblemError(
            "bad_currency", f"{row.country} pays in {country.currency}, not in {row.currency}"
        )
    return Order(
        row.number,
        row.placed,
        row.customer,
        row.email,
        row.country,
        row.currency,
        read_items(row.items),
    )


def read_items(text: str) -> tuple[Item, ...]:
    """Read `SKU:QUANTITY:UNIT_PRICE` separated by semicolons. Raises `ProblemError`."""
    parts = text.split(";")
    if len(parts) > ITEMS_MAX:
        raise ProblemError("bad_items", f"more than {ITEMS_MAX} items")
    return tuple(read_item(part) for part in parts)


def read_item(text: str) -> Item:
    """Read one `SKU:QUANTITY:UNIT_PRICE`. Raises `ProblemError`."""
    fields = text.split(":")
    if len(fields) != 3:
        raise ProblemError("bad_items", f"{text!r} is not SKU:QUANTITY:UNIT_PRICE")
    sku, quantity, unit_price = fields
    if sku not in CATALOGUE:
        raise ProblemError("unknown_sku", f"{sku} is not in the catalogue")
    return Item(
        sku,
        _whole(quantity, QUANTITY_MAX, "bad_quantity"),
        _whole(unit_price, UNIT_PRICE_MAX, "bad_price"),
    )


def _whole(text: str, largest: int, code: str) -> int:
    if not WHOLE.fullmatch(text) or not 1 <= int(text) <= largest:
        raise ProblemError(code, f"{text!r} is not a whole number from 1 to {largest}")
    return int(text)


def price_order(order: Order) -> Price:
    """Add up an order.

    `VOLUME_QUANTITY` or more of one article are 5 % cheaper. Postage goes by weight, up to the
    value from which it is free. Tax is taken by rate, on the goods after the discount and on
    postage at the full rate; every rounding is half up, once for each rate.
    """
    country = COUNTRIES[order.country]
    goods = sum(item.quantity * item.unit_price for item in order.items)
    discount = sum(volume_discount(item) for item in order.items)
    postage = postage_of(order, goods - discount)
    taxed: defaultdict[int, int] = defaultdict(int)
    taxed[country.tax_permille] += postage
    for item in order.items:
        reduced = CATALOGUE[item.sku].reduced_tax
        rate = country.reduced_tax_permille if reduced else country.tax_permille
        taxed[rate] += item.quantity * item.unit_price - volume_discount(item)
    tax = sum(permille(amount, rate) for rate, amount in taxed.items())
    return Price(goods, discount, postage, tax, goods - discount + postage + tax)


def volume_discount(item: Item) -> int:
    """Return what is taken off for taking many."""
    if item.quantity < VOLUME_QUANTITY:
        return 0
    return permille(item.quantity * item.unit_price, VOLUME_DISCOUNT_PERMILLE)


def postage_of(order: Order, value: int) -> int:
    """Return the postage for goods worth `value`; every begun kilogram counts."""
    rate = POSTAGE[order.currency]
    if value >= rate.free_from:
        return 0
    weight_g = sum(item.quantity * CATALOGUE[item.sku].weight_g for item in order.items)
    return rate.base + rate.per_kg * -(-weight_g // 1_000)


def permille(amount: int, rate: int) -> int:
    """Return `rate` permille of a non-negative `amount`, rounded half up."""
    return (amount * rate + 500) // 1_000


def money(amount: int, currency: str) -> str:
    """Write an amount for people: `1234` becomes `12.34 EUR`."""
    return f"{amount // 100}.{amount % 100:02d} {currency}"


def invoice_text(order: Order, price: Price, receipt: Receipt) -> str:
    """Return the invoice, the same for the same order, price and receipt."""
    lines = [
        f"Invoice {order.number}",
        f"{order.customer} <{order.email}>, {order.country}",
        f"Ordered {order.placed}, paid by charge {receipt.charge_id}",
        "",
    ]
    lines += [
        f"{item.quantity:>4} x {CATALOGUE[item.sku].title:<32}"
        f" {money(item.quantity * item.unit_price, order.currency):>16}"
        for item in order.items
    ]
    sums = (
        ("Goods", price.goods),
        ("Discount", price.discount),
        ("Postage", price.postage),
        ("Tax", price.tax),
        ("Total", price.total),
    )
    lines += ["", *(f"{name:<39} {money(amount, order.currency):>16}" for name, amount in sums)]
    return "\n".join(lines) + "\n"


def receipt_from(line: Mapping[str, Any]) -> Receipt:
    """Read the payment server's word about one charge, in its answer or in its ledger."""
    return Receipt(line["id"], line["amount"], line["currency"])


def sent_from(line: Mapping[str, Any]) -> Sent:
    """Read the mail server's word about one message, in its answer or in its ledger."""
    return Sent(line["id"], line["digest"])


def add_up(results: tuple[Result, ...]) -> Summary:
    """Summarise what became of all orders; the keys of each table are sorted."""
    charged: defaultdict[str, int] = defaultdict(int)
    countries: defaultdict[str, int] = defaultdict(int)
    refused: defaultdict[str, int] = defaultdict(int)
    for result in results:
        if result.problem:
            refused[result.problem] += 1
            continue
        charged[result.currency] += result.total
        countries[result.country] += 1
    return Summary(
        len(results),
        sum(countries.values()),
        _sorted(charged),
        _sorted(countries),
        _sorted(refused),
    )


def _sorted(table: dict[str, int]) -> dict[str, int]:
    return dict(sorted(table.items()))
