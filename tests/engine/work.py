"""What the engine's tests let it do, and what was done."""

import asyncio
import collections
import threading

import tallystick as ts

calls: collections.Counter[str] = collections.Counter()
keys: list[tuple[str, int, int]] = []
open_gates: dict[str, asyncio.Event] = {}
arrivals: dict[str, asyncio.Event] = {}
thread_gates: dict[str, threading.Event] = {}
failures: dict[str, list[BaseException]] = collections.defaultdict(list)


def forget() -> None:
    """Begin with nothing done. Called before each test."""
    calls.clear()
    keys.clear()
    open_gates.clear()
    arrivals.clear()
    thread_gates.clear()
    failures.clear()


async def reached(name: str) -> None:
    """Return once a function waits at its gate."""
    await arrivals.setdefault(name, asyncio.Event()).wait()


def seen(name: str, ctx: ts.TaskContext) -> None:
    calls[name] += 1
    keys.append((ctx.idempotency_key, ctx.attempt, ctx.dispatch))
    if failures[name]:
        raise failures[name].pop(0)


async def do(name: str = "do", *, ctx: ts.TaskContext) -> dict:
    seen(name, ctx)
    return {"done": name}


def in_thread(name: str = "in_thread", *, ctx: ts.TaskContext) -> dict:
    seen(name, ctx)
    return {"done": name}


async def wait(name: str = "wait", *, ctx: ts.TaskContext) -> dict:
    """Ends when its gate is opened."""
    gate = open_gates.setdefault(name, asyncio.Event())
    seen(name, ctx)
    arrivals.setdefault(name, asyncio.Event()).set()
    await gate.wait()
    return {"done": name}


def wait_in_thread(name: str = "wait_in_thread", *, ctx: ts.TaskContext) -> dict:
    gate = thread_gates.setdefault(name, threading.Event())
    seen(name, ctx)
    gate.wait(10)
    return {"done": name}


async def stubborn(name: str = "stubborn", *, ctx: ts.TaskContext) -> dict:
    """Goes on when it is cancelled for the first time, until its gate is opened."""
    gate = open_gates.setdefault(name, asyncio.Event())
    seen(name, ctx)
    try:
        await gate.wait()
    except asyncio.CancelledError:
        calls[f"{name} cancelled"] += 1
        await gate.wait()
    return {"done": name}


def write(name: str = "write", *, ctx: ts.TaskContext) -> dict:
    """Counts itself in a table of the user's own."""
    seen(name, ctx)
    ctx.write(
        "INSERT INTO counted (name, n) VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1",
        (name,),
    )
    return {"done": name}


def write_nowhere(name: str = "write_nowhere", *, ctx: ts.TaskContext) -> dict:
    """Changes a row that is not there."""
    seen(name, ctx)
    ctx.write("UPDATE counted SET n = 0 WHERE name = 'nobody'")
    return {"done": name}
