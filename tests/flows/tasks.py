"""Tasks of every effect class, as coroutines and in threads, which log their effect on disk.

Each is a function of its arguments, its attempt and its dispatch alone, so that a flow ends the
same with and without a crash. Where a task fails on purpose, it does so before its effect. The line
that a task logs carries its output: with it, a doubt can be answered with the truth.

`TALLY_EFFECT_LOG` names the log; without it nothing is logged (the bench).
"""

import asyncio
import os
from typing import Any

import tallystick as ts
from tests.effects.log import PATH, record_effect

Output = dict[str, Any]


def _did(ctx: ts.TaskContext, output: Output) -> Output:
    """The effect: its line is on disk before the task can return."""
    if path := os.environ.get(PATH):
        record_effect(path, ctx, output=output)
    return output


class Broken(Exception):
    """A failure on purpose, before any effect."""


# What may be repeated by anybody.


@ts.task(effect="read_only")
async def look(x: int, *, ctx: ts.TaskContext) -> Output:
    """Add one."""
    return _did(ctx, {"x": x + 1})


@ts.task(effect="read_only")
def look_sync(x: int, *, ctx: ts.TaskContext) -> Output:
    """Double."""
    return _did(ctx, {"x": x * 2})


@ts.task(effect="read_only", max_attempts=3)
async def look_flaky(x: int, *, ctx: ts.TaskContext) -> Output:
    """Fail in the first attempt; the second is another attempt."""
    if ctx.attempt == 1:
        raise Broken("not yet")
    return _did(ctx, {"x": x + 3})


@ts.task(effect="read_only")
async def look_slow(x: int, *, ctx: ts.TaskContext) -> Output:
    """Never end in the first attempt: only its timeout ends it."""
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    return _did(ctx, {"x": x + 5})


@ts.task(effect="read_only")
async def look_lingering(x: int, *, ctx: ts.TaskContext) -> Output:
    """Outlive the engine in the very first dispatch: only the end of its grace ends it."""
    if ctx.attempt == ctx.dispatch == 1:
        await asyncio.Event().wait()
    return _did(ctx, {"x": x + 7})


@ts.task(effect="read_only")
async def look_large(x: int, *, ctx: ts.TaskContext) -> Output:
    """Return more than lies inline."""
    return _did(ctx, {"text": str(x % 10) * 100_000})


@ts.task(effect="read_only")
def look_broken(x: int, *, ctx: ts.TaskContext) -> Output:
    """Fail always."""
    raise Broken(f"{x} is no use")


# What the receiver recognises by its key.


@ts.task(effect="idempotent")
async def charge(x: int, *, ctx: ts.TaskContext) -> Output:
    """Charge by key."""
    return _did(ctx, {"charged": x})


@ts.task(effect="idempotent")
def charge_sync(x: int, *, ctx: ts.TaskContext) -> Output:
    """Charge by key, in a thread."""
    return _did(ctx, {"charged": -x})


@ts.task(effect="idempotent", max_attempts=3)
async def charge_flaky(x: int, *, ctx: ts.TaskContext) -> Output:
    """Fail in the first dispatch; the second is of the same attempt, under the same key."""
    if ctx.dispatch == 1:
        raise Broken("the line was cut before anything was sent")
    return _did(ctx, {"charged": x})


@ts.task(effect="idempotent")
def charge_unsure(x: int, *, ctx: ts.TaskContext) -> Output:
    """Do it in the first dispatch and not know it; do it again under the same key."""
    output = _did(ctx, {"charged": x})
    if ctx.dispatch == 1:
        raise ts.OutcomeUnknown("no answer came")
    return output


# What nobody may repeat.


@ts.task(effect="mutating")
async def send(x: int, *, ctx: ts.TaskContext) -> Output:
    """Send a letter."""
    return _did(ctx, {"sent": x})


@ts.task(effect="mutating")
def send_sync(x: int, *, ctx: ts.TaskContext) -> Output:
    """Send a letter, in a thread."""
    return _did(ctx, {"sent": -x})


@ts.task(effect="mutating", max_attempts=3)
async def send_refused(x: int, *, ctx: ts.TaskContext) -> Output:
    """Be refused in the first attempt: it never began, so another may follow."""
    if ctx.attempt == 1:
        raise ts.NotAccepted("the office is closed")
    return _did(ctx, {"sent": x})


@ts.task
async def send_undeclared(x: int, *, ctx: ts.TaskContext) -> Output:
    """Declare nothing, which is to promise nothing: mutating."""
    return _did(ctx, {"sent": x})


# What commits with its settlement.


@ts.task(effect="transactional")
def book(x: int, *, ctx: ts.TaskContext) -> Output:
    """Hand back a row of the user's own table; see `setup.sql`."""
    ctx.write("INSERT INTO applied (identity, x) VALUES (?, ?)", (ctx.idempotency_key, x))
    return _did(ctx, {"booked": x})


@ts.task(effect="transactional")
async def book_async(x: int, *, ctx: ts.TaskContext) -> Output:
    """Hand back a row, from a coroutine."""
    ctx.write("INSERT INTO applied (identity, x) VALUES (?, ?)", (ctx.idempotency_key, -x))
    return _did(ctx, {"booked": -x})


# The bench: nothing but the engine's own work.


@ts.task(effect="read_only")
async def echo(n: int) -> Output:
    """Take 8 bytes of JSON and give 16, where `n` has two digits."""
    return {"k": 1, "out": n}


@ts.task(effect="read_only")
def add(numbers: list[int], *, ctx: ts.TaskContext) -> Output:
    """Join: add what came in."""
    return _did(ctx, {"total": sum(numbers)})
