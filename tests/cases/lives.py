"""One life of an engine, in a process of its own, made by `nursery`.

It says `armed`, starts a run of a definition for each input (by key, so that the next life finds
it), says `ready`, waits until all of them rest, and prints how as JSON. It stops in order on
SIGTERM, as `tally` does.
"""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import tallystick as ts
from tallystick.core.compiler import compile_source
from tallystick.core.diagnostics import SourceRefused
from tallystick.surfaces.cli.stopping import Stopping
from tests.effects.log import append

SHOWN = 1_000
"""Longer texts are told by their length."""


def memory(name: str) -> int:
    """Bytes that this process has resident, `VmRSS`, or had at most since its birth, `VmHWM`."""
    lines = Path("/proc/self/status").read_text("ascii").split("\n")
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def base() -> int:
    """Bytes resident now; the peak is counted from here. Source: proc(5), clear_refs."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


async def rest(handle: ts.RunHandle) -> dict[str, Any]:
    """Wait until a run ended or waits for a person; what is to be seen then."""
    with suppress(ts.RunFailed, ts.RunInDoubt):
        await handle.result()
    return seen(await handle.status())


def shown(value: Any) -> Any:
    """A long text by its length."""
    long = isinstance(value, str) and len(value) > SHOWN
    return {"length": len(value)} if long else value


def seen(info: ts.RunInfo) -> dict[str, Any]:
    """A run as JSON."""
    return {
        "run": info.id,
        "status": info.status,
        "output": shown(info.output),
        "failure": info.failure,
        "doubts": [
            {"step": d.step, "reason": d.reason, "identity": d.identity, "attempt": d.attempt}
            for d in info.doubts
        ],
    }


async def live(asked: dict[str, Any], stopping: Stopping) -> dict[str, Any]:
    """Open, start, wait, close."""
    stopping.arm(asyncio.get_running_loop())
    print("armed", flush=True)  # noqa: T201  it is waited for
    definition = compile_source(asked["source"].encode(), "case.yaml").definition
    found: dict[str, Any] = {}
    async with ts.open(asked["store"], engine=True, setup=asked.get("setup")) as tally:
        before = base()
        handles = {}
        for number, given in enumerate(asked["inputs"]):
            key = f"{definition.workflow}-{asked.get('series', 0)}-{number}"
            if isinstance(given, dict) and "of_length" in given:
                given = "x" * given["of_length"]
            try:
                handles[key] = await tally.start(definition, input=given, key=key)
            except ts.TallyError as refused:
                return {"refused": refused.as_json(), "grown": memory("VmHWM") - before}
            append(asked["acknowledged"], {"run": handles[key].id})
        print("ready", flush=True)  # noqa: T201  it is waited for
        rests = [asyncio.ensure_future(rest(handle)) for handle in handles.values()]
        all_rest = asyncio.gather(*rests, return_exceptions=True)
        stop = asyncio.ensure_future(stopping.requested.wait())
        await asyncio.wait({all_rest, stop}, return_when=asyncio.FIRST_COMPLETED)
        if all_rest.done():
            found = dict(zip(handles, [it.result() for it in rests], strict=True))
        stop.cancel()
        closing_at = time.time_ns() // 1_000_000
        await tally.close(grace=stopping.grace_ms / 1_000)
        all_rest.cancel()
        await asyncio.gather(all_rest, stop, return_exceptions=True)
    return {"runs": found, "grown": memory("VmHWM") - before, "closing_at": closing_at}


def compile_and_refuse(source: str) -> None:
    """Compile what is to be refused."""
    try:
        compile_source(source.encode(), "case.yaml")
    except SourceRefused:
        return
    raise AssertionError("it was taken")


def alone(name: str, given: list[Any]) -> int:
    """How much memory one function needs, beyond what everything else does."""
    before = base()
    {"compile_and_refuse": compile_and_refuse}[name](*given)
    return memory("VmHWM") - before


def main(asked: dict[str, Any]) -> int:
    """Live once. Returns what to end with."""
    if "only" in asked:
        print(json.dumps({"grown": alone(asked["only"], asked["given"])}))  # noqa: T201  the same
        return 0
    stopping = Stopping(asked.get("grace_ms", 2_000))
    # The loop is left as it is, as `tally` leaves it: to close it would wait for what never ends.
    told = asyncio.Runner().run(live(asked, stopping))
    print(json.dumps(told), flush=True)  # noqa: T201  it is what it is for
    return 0
