"""The shop's steps: what each does, and how it tells what it does not know."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
import shop
from faults import Fault
from home import INVOICES, MAIL_URL, ORDER_YAML, PAYMENT_URL, SUMMARY_YAML
from ledger import MAIL, PAYMENT, read_ledger
from rules import Invoice, Item, Order, Price, Receipt, Result, Sent, invoice_text
from servers import EffectServer

import tallystick as ts
from tallystick.core.compiler import compile_source
from tallystick.executors.function.task import options_of
from tests.examples.conftest import Serve

ORDER = Order(
    "TS-10001",
    "2025-03-01T08:20:00Z",
    "Noor Bakker",
    "noor.bakker@example.com",
    "NL",
    "EUR",
    (Item("MG-CHALK", 2, 1450),),
)
PRICE = Price(goods=2900, discount=0, postage=610, tax=737, total=4247)
RECEIPT = Receipt("ch_000001", 4247, "EUR")


def context(key: str = "k1", *, attempt: int = 1, dispatch: int = 1) -> ts.TaskContext:
    return ts.TaskContext(idempotency_key=key, attempt=attempt, dispatch=dispatch)


@pytest.fixture
def payment(serve: Serve, monkeypatch) -> EffectServer:
    return open_shop(serve(PAYMENT), PAYMENT_URL, monkeypatch)


def open_shop(server: EffectServer, variable: str, monkeypatch) -> EffectServer:
    monkeypatch.setenv(variable, f"http://127.0.0.1:{server.port}")
    return server


@pytest.fixture
def invoices(tmp_path: Path, monkeypatch) -> Path:
    folder = tmp_path / "invoices"
    folder.mkdir()
    monkeypatch.setenv(INVOICES, str(folder))
    return folder


@pytest.mark.parametrize("source", [ORDER_YAML, SUMMARY_YAML])
def test_a_step_and_its_function_say_the_same_of_its_effect(source: Path):
    definition = compile_source(source.read_bytes(), source.name).definition
    calls = [node for node in definition.root.nodes if node.call]
    said = {node.call: node.effect for node in calls}
    marked = {f"shop:{name}": options_of(getattr(shop, name)).effect for name in shop.__dict__}
    assert said
    assert said == {call: marked[call] for call in said}


# ---- charge ----


async def test_a_charge_is_made_once_under_the_key_of_its_attempt(payment, tmp_path: Path):
    first = await shop.charge(ORDER, PRICE, ctx=context(attempt=2, dispatch=1))
    second = await shop.charge(ORDER, PRICE, ctx=context(attempt=2, dispatch=2))
    assert first == second == RECEIPT
    (line,) = read_ledger(tmp_path / "payment.jsonl")
    assert (line["key"], line["attempt"]) == ("k1", "2.1")
    assert (line["reference"], line["amount"], line["currency"]) == ("TS-10001", 4247, "EUR")


@pytest.mark.parametrize(
    ("fault", "end"),
    [
        (Fault.LATE, None),
        (Fault.STALL, None),
        (Fault.BUSY, ts.NotAccepted),
        (Fault.ERROR, ts.OutcomeUnknown),
        (Fault.DROP, ts.OutcomeUnknown),
        (Fault.HANG, ts.OutcomeUnknown),
    ],
)
async def test_a_charge_says_what_is_known_of_its_end(
    serve: Serve, monkeypatch, fault: Fault, end: type[Exception] | None
):
    open_shop(serve(PAYMENT, {("TS-10001", 1): fault}), PAYMENT_URL, monkeypatch)
    if end is None:
        assert await shop.charge(ORDER, PRICE, ctx=context()) == RECEIPT
    else:
        with pytest.raises(end):
            await shop.charge(ORDER, PRICE, ctx=context())


async def test_a_charge_that_is_stopped_passes_the_cancellation_on(serve: Serve, monkeypatch):
    """Only then can the engine tell a timeout from an error; it knows that nobody knows the end."""
    server = serve(PAYMENT, {("TS-10001", 1): Fault.HANG}, hang_ms=5_000)
    open_shop(server, PAYMENT_URL, monkeypatch)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await shop.charge(ORDER, PRICE, ctx=context())


async def test_a_charge_that_the_server_refuses_is_an_error_and_no_doubt(payment):
    await shop.charge(ORDER, PRICE, ctx=context())
    with pytest.raises(shop.RefusedError, match="another request"):
        await shop.charge(ORDER, Price(1, 0, 0, 0, 1), ctx=context())


async def test_a_server_that_is_not_there_did_not_accept(monkeypatch, invoices: Path):
    for name in (PAYMENT_URL, MAIL_URL):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # a port that nobody may have
    with pytest.raises(ts.NotAccepted):
        await shop.charge(ORDER, PRICE, ctx=context())
    invoice = shop.write_invoice(ORDER, PRICE, RECEIPT)
    with pytest.raises(ts.NotAccepted):
        shop.send_invoice(ORDER, invoice, ctx=context())


# ---- write_invoice ----


def test_an_invoice_is_written_whole_and_the_same_each_time(invoices: Path):
    text = invoice_text(ORDER, PRICE, RECEIPT).encode()
    wanted = Invoice("TS-10001.txt", hashlib.sha256(text).hexdigest())
    assert [shop.write_invoice(ORDER, PRICE, RECEIPT) for _ in range(2)] == [wanted, wanted]
    assert [path.name for path in invoices.iterdir()] == ["TS-10001.txt"]
    assert (invoices / "TS-10001.txt").read_bytes() == text


def test_an_invoice_that_the_disk_refuses_leaves_the_old_one(invoices: Path, monkeypatch):
    shop.write_invoice(ORDER, PRICE, RECEIPT)
    before = (invoices / "TS-10001.txt").read_bytes()

    def refuse(_: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(shop.os, "fsync", refuse)
    with pytest.raises(OSError, match="no space"):
        shop.write_invoice(ORDER, PRICE, Receipt("ch_000002", 1, "EUR"))
    assert {path.name: path.read_bytes() for path in invoices.iterdir()} == {"TS-10001.txt": before}


# ---- send_invoice ----


@pytest.mark.parametrize(
    ("fault", "end", "sent"),
    [
        (Fault.NONE, None, 1),
        (Fault.LATE, None, 1),
        (Fault.BUSY, ts.NotAccepted, 0),
        (Fault.ERROR, ts.OutcomeUnknown, 0),
        (Fault.DROP, ts.OutcomeUnknown, 1),
        (Fault.HANG, ts.OutcomeUnknown, 0),
    ],
)
def test_a_message_is_sent_once_or_its_end_is_told_as_it_is(
    serve: Serve,
    monkeypatch,
    tmp_path: Path,
    invoices: Path,
    fault: Fault,
    end: type[Exception] | None,
    sent: int,
):
    open_shop(serve(MAIL, {("TS-10001", 1): fault}), MAIL_URL, monkeypatch)
    invoice = shop.write_invoice(ORDER, PRICE, RECEIPT)
    if end is None:
        answer = shop.send_invoice(ORDER, invoice, ctx=context())
        assert answer == Sent("ml_000001", invoice.digest)
    else:
        with pytest.raises(end):
            shop.send_invoice(ORDER, invoice, ctx=context())
    lines = read_ledger(tmp_path / "mail.jsonl")
    assert [line["digest"] for line in lines] == [invoice.digest] * sent


def test_a_message_that_takes_too_long_has_an_unknown_end(
    serve: Serve, monkeypatch, invoices: Path
):
    monkeypatch.setattr(shop, "MAIL_TIMEOUT_SECONDS", 0.05)
    server = serve(MAIL, {("TS-10001", 1): Fault.STALL}, hang_ms=5_000)
    open_shop(server, MAIL_URL, monkeypatch)
    invoice = shop.write_invoice(ORDER, PRICE, RECEIPT)
    with pytest.raises(ts.OutcomeUnknown):
        shop.send_invoice(ORDER, invoice, ctx=context())


# ---- the rest ----


def test_the_steps_that_only_read_are_the_rules():
    row = shop.Row("TS-1", "", "", "", "", "", "")
    assert shop.check(row).problem == "bad_number"
    assert shop.price(ORDER) == PRICE
    assert shop.summarise((Result("TS-1", "NL", "EUR", 7),)).charged == {"EUR": 7}


def test_a_message_is_the_invoice_that_was_written(
    serve: Serve, monkeypatch, invoices: Path, tmp_path: Path
):
    """The server's digest covers the whole body, so this is the body that was sent."""
    open_shop(serve(MAIL), MAIL_URL, monkeypatch)
    invoice = shop.write_invoice(ORDER, PRICE, RECEIPT)
    shop.send_invoice(ORDER, invoice, ctx=context())
    body = {
        "reference": ORDER.number,
        "to": ORDER.email,
        "digest": invoice.digest,
        "text": (invoices / invoice.file).read_text(encoding="utf-8"),
    }
    data = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    (line,) = read_ledger(tmp_path / "mail.jsonl")
    assert line["body"] == hashlib.sha256(data).hexdigest()
