"""The shop's steps, as order.yaml and summary.yaml call them.

Each says with its effect what may be done when nobody knows whether it happened:

    check, price   read_only    repeating is harmless
    charge         idempotent   the payment server knows the key again: ask as often as you like
    write_invoice  idempotent   the same file gets the same bytes
    send_invoice   mutating     the mail server sends whatever it gets: ask a person instead
    summarise      read_only

The functions know nothing of crashes. What they owe the engine is honesty about one question: was
anything sent? `NotAccepted` says certainly not, `OutcomeUnknown` says nobody knows, any other
exception says it failed and is over.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from home import INVOICES, MAIL_URL, PAYMENT_URL
from rules import (
    Invoice,
    Order,
    Price,
    Receipt,
    Result,
    Row,
    Sent,
    Summary,
    Verdict,
    add_up,
    invoice_text,
    judge_row,
    price_order,
    receipt_from,
    sent_from,
)
from wire import Answer, LostError, NotReachedError, post, post_async

import tallystick as ts

MAIL_TIMEOUT_SECONDS: Final = 1.0


class RefusedError(Exception):
    """A service understood the request and said no. It did nothing, and would say no again."""


@ts.task(effect="read_only")
def check(row: Row) -> Verdict:
    """Read a row of orders.csv: an order, or the problem that refuses it."""
    return judge_row(row)


@ts.task(effect="read_only")
def price(order: Order) -> Price:
    """Add up an order."""
    return price_order(order)


@ts.task(effect="idempotent", max_attempts=3)
async def charge(order: Order, price: Price, *, ctx: ts.TaskContext) -> Receipt:
    """Take the money, once, however often this is called with one key."""
    body = {"reference": order.number, "amount": price.total, "currency": order.currency}
    try:
        answer = await post_async(f"{os.environ[PAYMENT_URL]}/charges", body, _headers(ctx))
    except NotReachedError as error:
        raise ts.NotAccepted(str(error)) from error
    except LostError as error:
        raise ts.OutcomeUnknown(str(error)) from error
    return receipt_from(_accepted(answer))


@ts.task(effect="idempotent", max_attempts=3)
def write_invoice(order: Order, price: Price, receipt: Receipt) -> Invoice:
    """Write the invoice to a file named by the order, whole or not at all.

    It is on disk when this returns.
    """
    data = invoice_text(order, price, receipt).encode()
    name = f"{order.number}.txt"
    _write_durably(Path(os.environ[INVOICES]), name, data)
    return Invoice(name, hashlib.sha256(data).hexdigest())


@ts.task(effect="mutating", max_attempts=3)
def send_invoice(order: Order, invoice: Invoice, *, ctx: ts.TaskContext) -> Sent:
    """Send the invoice by a server that sends all it gets, even the same thing twice."""
    text = (Path(os.environ[INVOICES]) / invoice.file).read_text(encoding="utf-8")
    body = {"reference": order.number, "to": order.email, "digest": invoice.digest, "text": text}
    try:
        answer = post(
            f"{os.environ[MAIL_URL]}/invoices",
            body,
            _headers(ctx),
            timeout_seconds=MAIL_TIMEOUT_SECONDS,
        )
    except NotReachedError as error:
        raise ts.NotAccepted(str(error)) from error
    except LostError as error:
        raise ts.OutcomeUnknown(str(error)) from error
    return sent_from(_accepted(answer))


@ts.task(effect="read_only")
def summarise(results: tuple[Result, ...]) -> Summary:
    """Say what became of all orders."""
    return add_up(results)


# How the answer of a service reads. A status that refuses says that nothing was done, 429 that it
# may be asked again; any other says nothing about what happened before it was sent.
ACCEPTED: Final = frozenset({200, 201})
REFUSED: Final = frozenset({400, 401, 403, 404, 405, 410, 411, 413, 415, 422})
BUSY: Final = 429


def _accepted(answer: Answer) -> Mapping[str, Any]:
    if answer.status in ACCEPTED:
        return answer.body
    reason = f"status {answer.status}: {answer.body.get('error', '')}"
    if answer.status == BUSY:
        raise ts.NotAccepted(reason)
    if answer.status in REFUSED:
        raise RefusedError(reason)
    raise ts.OutcomeUnknown(reason)


def _headers(ctx: ts.TaskContext) -> dict[str, str]:
    return {"Idempotency-Key": ctx.idempotency_key, "X-Attempt": f"{ctx.attempt}.{ctx.dispatch}"}


def _write_durably(folder: Path, name: str, data: bytes) -> None:
    """Put `data` under `name`: readers see the old file or the new one, and a power cut does too.

    The bytes reach the disk under a name of their own first, so two writers at once do not mix.
    """
    draft = folder / f".{name}.{secrets.token_hex(8)}"
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / name)
    finally:
        draft.unlink(missing_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
