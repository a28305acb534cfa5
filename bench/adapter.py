"""Everything that the bench knows of the package: one place to change when a name changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tallystick.core.definition import Definition, Node, Scope

Tally: TypeAlias = Any
"""An open client that may dispatch; only this module calls its methods."""
Handle: TypeAlias = Any
"""A run that was started."""
Output: TypeAlias = Any
"""A JSON value."""


@asynccontextmanager
async def engine(path: Path) -> AsyncIterator[Tally]:
    """An engine on its own store."""
    import tallystick as ts

    async with ts.open(str(path), engine=True) as tally:
        yield tally


async def start(tally: Tally, definition: Definition, number: int = 10) -> Handle:
    """Start a run with the input {"n": number}: 8 bytes where it has two digits."""
    return await tally.start(definition, input={"n": number})


async def run(tally: Tally, definition: Definition, number: int = 10) -> Output:
    """Start a run and wait for its output."""
    return await (await start(tally, definition, number)).result()


def chain(steps: int, task: str = "echo") -> Definition:
    """A chain of steps, each waiting for the one before. Built through the core model."""
    inputs = {"n": "${{ input.n }}"}
    nodes = tuple(
        Node(
            id=f"s{number}",
            kind="call",
            call=f"bench.tasks:{task}",
            needs=(f"s{number - 1}",) if number else (),
            inputs=inputs,
        )
        for number in range(steps)
    )
    return Definition(workflow=f"chain-{steps}", root=Scope(nodes))


def yaml(steps: int) -> str:
    """A file of a realistic shape: each step with a title, inputs and a policy."""
    text = ["tally: 1", "workflow: timed", "input: {type: object}", "steps:"]
    for number in range(steps):
        text += [
            f"  - id: s{number}",
            f"    title: Step number {number}",
            "    call: bench.tasks:echo",
            "    with:",
            '      n: "${{ input.n }}"',
            "    effect: read_only",
            "    retry: {max_attempts: 3, backoff: 5s}",
        ]
    return "\n".join(text) + "\n"


def compile_yaml(path: Path) -> None:
    """Read and compile a definition file."""
    from tallystick.core.compiler import compile_source

    compile_source(path.read_bytes(), str(path))
