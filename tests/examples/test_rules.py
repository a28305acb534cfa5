"""The example's rules: which rows are orders, and what an order costs."""

from dataclasses import replace
from pathlib import Path

import make_orders
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules import (
    CATALOGUE,
    COUNTRIES,
    ITEMS_MAX,
    QUANTITY_MAX,
    Item,
    Order,
    Price,
    Receipt,
    Result,
    Row,
    Summary,
    add_up,
    invoice_text,
    judge_row,
    money,
    permille,
    price_order,
)

from tests.examples.conftest import ORDERS

ROW = Row(
    number="TS-10001",
    placed="2025-03-01T08:20:00Z",
    customer="Noor Bakker",
    email="noor.bakker@example.com",
    country="NL",
    currency="EUR",
    items="MG-CHALK:2:1450;BK-TALLY:1:2990",
)


def order(country: str, *items: Item) -> Order:
    currency = COUNTRIES[country].currency
    return Order("TS-10001", "2025-03-01", "N", "n@example.com", country, currency, items)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"number": "10001"}, "bad_number"),
        ({"number": "TS-10001/../x"}, "bad_number"),
        ({"number": "TS-10001\n"}, "bad_number"),
        ({"email": "noor.bakker(at)example.com"}, "bad_email"),
        ({"email": "noor bakker@example.com"}, "bad_email"),
        ({"email": "noor@localhost"}, "bad_email"),
        ({"country": "XX"}, "bad_country"),
        ({"currency": "USD"}, "bad_currency"),
        ({"items": ""}, "bad_items"),
        ({"items": "MG-CHALK:2"}, "bad_items"),
        ({"items": ";".join(["MG-CHALK:1:1450"] * (ITEMS_MAX + 1))}, "bad_items"),
        ({"items": "MG-CHALC:2:1450"}, "unknown_sku"),
        ({"items": "MG-CHALK:0:1450"}, "bad_quantity"),
        ({"items": "MG-CHALK:-2:1450"}, "bad_quantity"),
        ({"items": "MG-CHALK:two:1450"}, "bad_quantity"),
        ({"items": "MG-CHALK:2.0:1450"}, "bad_quantity"),
        ({"items": f"MG-CHALK:{QUANTITY_MAX + 1}:1450"}, "bad_quantity"),
        ({"items": "MG-CHALK:2:0"}, "bad_price"),
        ({"items": "MG-CHALK:2:99999999999999999999"}, "bad_price"),
    ],
)
def test_a_wrong_row_is_refused_by_name(change: dict[str, str], problem: str):
    verdict = judge_row(replace(ROW, **change))
    assert (verdict.order, verdict.problem) == (None, problem)
    assert verdict.reason


def test_a_good_row_is_read_whole():
    verdict = judge_row(ROW)
    assert verdict.problem == verdict.reason == ""
    assert verdict.order
    assert verdict.order.items == (Item("MG-CHALK", 2, 1450), Item("BK-TALLY", 1, 2990))


@pytest.mark.parametrize(
    ("wanted", "price"),
    [
        # 29.00 + 29.90; 1.3 kg are two begun kilograms; 21 % of 36.30, 9 % of the book
        (
            order("NL", Item("MG-CHALK", 2, 1450), Item("BK-TALLY", 1, 2990)),
            Price(goods=5890, discount=0, postage=730, tax=762 + 269, total=7651),
        ),
        # ten are 5 % cheaper: 69.00 - 3.45 is below 75.00, so postage is due
        (
            order("DE", Item("ST-HAZEL", 10, 690)),
            Price(goods=6900, discount=345, postage=610, tax=1361, total=8526),
        ),
        # nine are not
        (
            order("DE", Item("ST-HAZEL", 9, 690)),
            Price(goods=6210, discount=0, postage=610, tax=1296, total=8116),
        ),
        # from 75.00 after the discount no postage
        (
            order("DE", Item("MG-CHALK", 1, 7500)),
            Price(goods=7500, discount=0, postage=0, tax=1425, total=8925),
        ),
        # books are free of tax in Britain, their postage is not
        (
            order("GB", Item("BK-KNOTS", 1, 1625)),
            Price(goods=1625, discount=0, postage=520, tax=104, total=2249),
        ),
    ],
)
def test_an_order_costs_what_a_person_adds_up(wanted: Order, price: Price):
    assert price_order(wanted) == price


@given(
    st.sampled_from(sorted(COUNTRIES)),
    st.lists(
        st.builds(
            Item,
            st.sampled_from(sorted(CATALOGUE)),
            st.integers(1, QUANTITY_MAX),
            st.integers(1, 1_000_000),
        ),
        min_size=1,
        max_size=ITEMS_MAX,
    ),
)
def test_the_parts_of_a_price_add_up(country: str, items: list[Item]):
    price = price_order(order(country, *items))
    assert price.total == price.goods - price.discount + price.postage + price.tax
    assert 0 <= price.discount <= price.goods // 20 + len(items)
    assert price.postage >= 0
    assert price.tax >= 0


@pytest.mark.parametrize(
    ("amount", "rate", "part"), [(0, 190, 0), (10, 50, 1), (9, 50, 0), (100, 1000, 100)]
)
def test_halves_are_rounded_up(amount: int, rate: int, part: int):
    assert permille(amount, rate) == part


def test_money_keeps_its_pence():
    assert [money(n, "GBP") for n in (0, 5, 1234)] == ["0.00 GBP", "0.05 GBP", "12.34 GBP"]


def test_an_invoice_names_order_charge_and_total():
    read = judge_row(ROW).order
    assert read
    price = price_order(read)
    text = invoice_text(read, price, Receipt("ch_000042", price.total, "EUR"))
    assert "Invoice TS-10001" in text
    assert "ch_000042" in text
    assert text.endswith("76.51 EUR\n")


def test_the_summary_counts_the_refused_apart():
    results = (
        Result("TS-1", "NL", "EUR", 100),
        Result("TS-2", "DE", "EUR", 11),
        Result("TS-3", "GB", "GBP", 5),
        Result("TS-4", "", "", 0, problem="bad_email"),
    )
    assert add_up(results) == Summary(
        orders=4,
        invoiced=3,
        charged={"EUR": 111, "GBP": 5},
        countries={"DE": 1, "GB": 1, "NL": 1},
        refused={"bad_email": 1},
    )


def test_the_orders_are_made_again_byte_for_byte(tmp_path: Path):
    make_orders.write_files(tmp_path)
    for name in ("orders.csv", "refusals.csv"):
        assert (tmp_path / name).read_bytes() == (ORDERS / name).read_bytes()


def test_exactly_the_orders_that_were_spoilt_are_refused():
    rows = make_orders.read_orders(ORDERS / "orders.csv")
    assert len({row.number for row in rows}) == make_orders.ORDERS
    refused = [(row.number, judge_row(row).problem) for row in rows if judge_row(row).problem]
    assert refused == make_orders.make_refusals(rows)
