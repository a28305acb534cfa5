"""What each command does, once its words were read. Each returns the exit code.

A verb asks the client, prints one document, and decides nothing: what may be done is decided below
the client, and what an answer means for a script is in `exits`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from tallystick.core.values import Value
from tallystick.surfaces import exits
from tallystick.surfaces.cli import pages
from tallystick.surfaces.cli.logs import show_logs
from tallystick.surfaces.cli.port import IdleDocument, Opener, Outcome, Tally
from tallystick.surfaces.cli.sayings import event_line, history_line
from tallystick.surfaces.cli.screen import JsonArray, Screen
from tallystick.surfaces.cli.stopping import Stopping
from tallystick.surfaces.cli.watch import Stopped, Watch, unless_stopped
from tallystick.surfaces.exits import ExitCode
from tallystick.surfaces.render import command, safe

_MILESTONES = frozenset(
    {"RunAdmitted", "RunHandedOff", "AttemptDoubted", "RunStopping", "RunEnded"}
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What every verb is given. database: as typed or from the environment; None: the default.

    typed  words that a command to be pasted needs, to reach the same database
    """

    opener: Opener
    screen: Screen
    database: str | None
    typed: Sequence[str] = ()


async def run(
    asked: Asked, file: str, value: Value, key: str | None, root: str | None, stopping: Stopping
) -> int:
    """Start a run, or find it again by its key, and watch it to its end."""
    async with asked.opener.open(asked.database, role="own", file=file) as tally:
        _tell_created(asked, tally)
        started = await tally.start(file, value=value, key=key, root=root)
        number, found = started.run, "" if started.created else ", which has this key already"
        asked.screen.notice(
            "run", f"run {safe(number)}{found}", run=number, created=started.created
        )
        try:
            document = await Watch(tally, started, asked.screen, stopping).end()
        except Stopped:
            return await _stop(asked, tally, stopping, number)
    asked.screen.result(document, lambda style: pages.end_page(document, style, asked.typed))
    return exits.of_status(document["status"])


async def engine(asked: Asked, until_idle: bool, stopping: Stopping) -> int:
    """Carry every run on, until nothing moves by itself or the process is asked to stop."""
    async with asked.opener.open(asked.database, role="engine") as tally:
        _tell_created(asked, tally)
        asked.screen.notice("engine", f"engine on {safe(tally.path)}", path=tally.path)
        try:
            async with _milestones(asked, tally):
                found = await unless_stopped(stopping, _idle(tally, until_idle))
        except Stopped:
            return await _stop(asked, tally, stopping, None)
    if found is None:
        return ExitCode.SUCCEEDED
    asked.screen.result(found, lambda _: pages.idle_page(found, asked.typed))
    return ExitCode.PERSON if found["person"] else ExitCode.SUCCEEDED


async def show(asked: Asked, name: str) -> int:
    """Print everything that is known of a run."""
    async with asked.opener.open(asked.database, role="client") as tally:
        document = await tally.show(await tally.full_id(name))
    asked.screen.result(document, lambda style: pages.run_page(document, style, asked.typed))
    return ExitCode.SUCCEEDED


async def list_runs(
    asked: Asked,
    status: tuple[str, ...],
    workflow: str | None,
    key: str | None,
    before: int | None,
    limit: int,
) -> int:
    """Print a page of runs."""
    async with asked.opener.open(asked.database, role="client") as tally:
        page = await tally.list(
            status=status, workflow=workflow, key=key, before=before, limit=limit
        )
    asked.screen.result(page, lambda style: pages.list_page(page, style, asked.typed))
    return ExitCode.SUCCEEDED


async def history(asked: Asked, name: str, after: int) -> int:
    """Print a run's events as they are read, one a line; as JSON one array element a line."""
    screen = asked.screen
    async with asked.opener.open(asked.database, role="client") as tally:
        number = await tally.full_id(name)
        array = JsonArray(screen, {"run": number}, "events") if screen.json else None
        async for event in tally.history(number, after=after):
            if array is not None:
                array.add(event)
            else:
                screen.lines(screen.out, [history_line(event, screen.result_style)])
        if array is not None:
            array.close()
    return ExitCode.SUCCEEDED


async def resolve(
    asked: Asked, name: str, step: str, outcome: Outcome, output: bytes | None, reason: str
) -> int:
    """Record a person's decision about a doubt. Nothing is dispatched by it."""
    async with asked.opener.open(asked.database, role="client") as tally:
        number = await tally.full_id(name)
        document = await tally.resolve(number, step, outcome, output=output, reason=reason)
    asked.screen.result(
        document, lambda style: pages.resolved_page(document, step, style, asked.typed)
    )
    return ExitCode.SUCCEEDED


def validate(asked: Asked, file: str, import_code: bool, root: str | None) -> int:
    """Compile a source and print what is wrong with it, all at once."""
    found = asked.opener.validate(file, import_code=import_code, root=root)
    if found["valid"] or asked.screen.json:
        asked.screen.result(found, lambda style: pages.valid_page(found, style))
    else:
        from tallystick.surfaces.cli import refusals

        refusal = refusals.of_problems(found["problems"])
        asked.screen.refuse(refusal, lambda style: refusals.page(refusal, style))
    return ExitCode.SUCCEEDED if found["valid"] else ExitCode.INVALID


def wait(asked: Asked, verb: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a verb that neither watches nor owns anything."""
    show_logs(asked.screen)
    return asyncio.run(verb())


def stoppable(asked: Asked, verb: Callable[[Stopping], Coroutine[Any, Any, int]]) -> int:
    """Run a verb that owns runs: signals ask it to stop, and nothing outlives it."""
    show_logs(asked.screen)
    # What a task prints is not the result of the command.
    with asyncio.Runner() as runner, redirect_stdout(sys.stderr):
        stopping = Stopping()
        stopping.arm(runner.get_loop())
        code = runner.run(verb(stopping))
        if stopping.signal is not None:
            # A function in a thread may never return, and the interpreter would wait for it.
            asked.screen.out.flush()
            sys.stderr.flush()
            stopping.leave(code)
        stopping.disarm()
    return code


async def _idle(tally: Tally, until_idle: bool) -> IdleDocument | None:
    if until_idle:
        return await tally.idle()
    await tally.stopped()
    return None


@asynccontextmanager
async def _milestones(asked: Asked, tally: Tally) -> AsyncIterator[None]:
    """Tell what happens meanwhile, one line each; what failed then is told by who waits for it."""
    over = asyncio.Event()

    async def tell() -> None:
        async for event in tally.news(_MILESTONES, over):
            asked.screen.event(event, event_line(event, asked.screen.notice_style, run=True))

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(telling, return_exceptions=True)


async def _stop(asked: Asked, tally: Tally, stopping: Stopping, number: str | None) -> int:
    assert stopping.signal is not None
    asked.screen.notice(
        "stopping", "stopping: what runs may end; again: at once", grace_ms=stopping.grace_ms
    )
    await tally.stop(stopping.grace_ms)
    carry_on = command(["tally", "engine", *asked.typed, "--until-idle"])
    what = "every run is kept" if number is None else f"run {safe(number)} is kept"
    asked.screen.notice("stopped", f"stopped: {what}; to carry on: {carry_on}", run=number)
    return exits.of_signal(stopping.signal)


def _tell_created(asked: Asked, tally: Tally) -> None:
    if tally.created:
        asked.screen.notice("database-created", f"created {safe(tally.path)}", path=tally.path)
