"""What the field cases let an engine do. What has an effect logs it, fsynced, as it happens."""

import asyncio
import os
from pathlib import Path
from typing import Any

import tallystick as ts
from tests.effects import log
from tests.effects.client import ask


def did(ctx: ts.TaskContext, **body: Any) -> None:
    """The effect."""
    log.record_effect(os.environ[log.PATH], ctx, **body)


def receive(ctx: ts.TaskContext, port: int) -> Any:
    """An effect at the receiver, which may never answer."""
    return ask(port, ctx, {"step": ctx.step})


# At a receiver of its own process.


@ts.task(effect="idempotent")
async def keyed(port: int, *, ctx: ts.TaskContext) -> Any:
    return await asyncio.to_thread(receive, ctx, port)


@ts.task(effect="idempotent")
def keyed_thread(port: int, *, ctx: ts.TaskContext) -> Any:
    return receive(ctx, port)


@ts.task
async def unsafe(port: int, *, ctx: ts.TaskContext) -> Any:
    return await asyncio.to_thread(receive, ctx, port)


@ts.task
def unsafe_thread(port: int, *, ctx: ts.TaskContext) -> Any:
    return receive(ctx, port)


@ts.task(effect="read_only")
async def look(port: int, *, ctx: ts.TaskContext) -> Any:
    return await asyncio.to_thread(receive, ctx, port)


# By the effect log.


@ts.task
async def note(x: object = None, *, ctx: ts.TaskContext) -> Any:
    did(ctx)
    return x


@ts.task
def note_thread(x: object = None, *, ctx: ts.TaskContext) -> Any:
    did(ctx)
    return x


@ts.task(effect="read_only", max_attempts=3)
async def fail(message: str = "no", *, ctx: ts.TaskContext) -> None:
    did(ctx)
    raise ValueError(message)


@ts.task
async def unsure(message: str = "?", *, ctx: ts.TaskContext) -> None:
    did(ctx)
    raise ts.OutcomeUnknown(message)


@ts.task
def make(size: int, *, ctx: ts.TaskContext) -> str:
    """An effect, and a result of so many characters."""
    did(ctx)
    return "x" * size


@ts.task
def length(x: str, *, ctx: ts.TaskContext) -> int:
    did(ctx)
    return len(x)


@ts.task
async def fail_at_length(size: int, *, ctx: ts.TaskContext) -> None:
    did(ctx)
    raise ValueError("x" * size)


@ts.task(effect="read_only")
async def give(x: object = None, *, ctx: ts.TaskContext) -> Any:
    did(ctx)
    return x


@ts.task(effect="read_only")
async def hang(*, ctx: ts.TaskContext) -> None:
    did(ctx)
    await asyncio.Event().wait()


@ts.task
def hang_thread(*, ctx: ts.TaskContext) -> None:
    did(ctx)
    Path(os.environ["CASE_FIFO"]).read_bytes()


@ts.task
async def ignore_cancel(*, ctx: ts.TaskContext) -> None:
    did(ctx)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


# Retries. Each logs every call.


@ts.task(effect="read_only", max_attempts=3)
async def look_and_fail(how: str = "error", *, ctx: ts.TaskContext) -> None:
    did(ctx)
    await fail_as(how)


@ts.task(effect="read_only", max_attempts=3)
def look_and_fail_in_thread(how: str = "error", *, ctx: ts.TaskContext) -> None:
    did(ctx)
    if how == "refused":
        raise ts.NotAccepted("closed")
    raise ValueError("no")


@ts.task(effect="idempotent", max_attempts=3)
async def charge_and_fail(how: str = "error", *, ctx: ts.TaskContext) -> None:
    did(ctx)
    await fail_as(how)


@ts.task
async def send_and_fail(how: str = "refused", *, ctx: ts.TaskContext) -> None:
    if how != "refused":
        did(ctx)
    await fail_as(how)


async def fail_as(how: str) -> None:
    match how:
        case "error":
            raise ValueError("no")
        case "refused":
            raise ts.NotAccepted("closed")
        case "unknown":
            raise ts.OutcomeUnknown("?")
        case "timeout":
            await asyncio.Event().wait()


@ts.task(effect="read_only")
async def always_fail() -> None:
    raise ValueError("no")


gates: dict[str, asyncio.Event] = {}


@ts.task
async def gate(name: str, *, ctx: ts.TaskContext) -> str:
    """An effect, and an end when the test says so."""
    did(ctx)
    await gates.setdefault(name, asyncio.Event()).wait()
    return name


@ts.task
async def gate_then_large(name: str, *, ctx: ts.TaskContext) -> str:
    """The same, with a result that lies in a file of its own."""
    did(ctx)
    await gates.setdefault(name, asyncio.Event()).wait()
    return "x" * 100_000
