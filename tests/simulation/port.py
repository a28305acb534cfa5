"""What the crash tests ask of the package: one place to change when a name changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import tallystick as ts
from tallystick.core.definition import Definition

SETUP = Path(__file__).parents[1] / "flows" / "setup.sql"


def fault_points() -> tuple[str, ...]:
    """Every place where a process can be made to die."""
    from tallystick.testing.faults import POINTS

    return POINTS


@asynccontextmanager
async def engine(path: Path) -> AsyncIterator[Any]:
    """An engine on the store at `path`."""
    async with ts.open(str(path), engine=True, setup=str(SETUP)) as tally:
        yield tally


async def start(tally: Any, definition: Definition, x: int, key: str) -> Any:
    """Start a run, or find it by its key. Returns its handle once it is acknowledged."""
    return await tally.start(definition, input={"x": x}, key=key)


async def rest(handle: Any) -> str:
    """Wait until the run ended or waits for a person; how."""
    try:
        await handle.result()
    except ts.RunFailed:
        return "failed"
    except ts.RunInDoubt:
        return "in_doubt"
    return "succeeded"


async def leave(tally: Any) -> None:
    """Close at once, in order: what is at work has a moment to end."""
    await asyncio.sleep(0.05)
    await tally.close(grace=0.3)


async def resolve(tally: Any, answer: dict[str, Any]) -> None:
    """Answer a doubt: {"run", "node", "instance", "decision"}, with "output" for `succeeded`."""
    output = {"output": answer["output"]} if "output" in answer else {}
    why = "the effect log says so"
    await tally.resolve(
        answer["run"],
        answer["node"],
        outcome=answer["decision"],
        reason=why,
        actor="test",
        **output,
    )
