"""One life of an engine: start the runs, answer the doubts, go on until everything is at rest.

    python -m tests.simulation.worker STORE --flow NAME --count N --acknowledged FILE

Every start is repeated by key, as a client must that does not know whether it was answered; each
that is answered is written down, fsynced. Prints how each run rests, as JSON. With `--then`
it leaves, or dies, as soon as everything is acknowledged, while the runs are at work.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from tests.effects.log import PATH, append, read
from tests.flows.reference import FLOWS
from tests.simulation import port
from tests.simulation.plants import PLANTS

PATIENCE_S = 10
HUNG = 99
"""What a life ends with that is not at rest, and causes no effect for `PATIENCE_S`."""


async def watched(asked: argparse.Namespace) -> dict[str, str]:
    """Live; but if nothing happens any more, say where every task stands, and end."""
    life, before = asyncio.create_task(live(asked)), None
    while not life.done():
        await asyncio.wait([life], timeout=PATIENCE_S / 4 if asked.plant else PATIENCE_S)
        now = len(read(os.environ[PATH]))
        if not life.done() and now == before:
            for task in asyncio.all_tasks():
                task.print_stack(file=sys.stderr)
            sys.stderr.flush()
            os._exit(HUNG)
        before = now
    return life.result()


async def live(asked: argparse.Namespace) -> dict[str, str]:
    """Open, start, answer, wait, close."""
    definition = FLOWS[asked.flow]()
    async with port.engine(asked.store) as tally:

        async def one(number: int) -> tuple[str, object]:
            key = f"{asked.flow}-{number}"
            handle = await port.start(tally, definition, number + 1, key)
            append(asked.acknowledged, {"run": handle.id})
            return key, handle

        handles = dict(await asyncio.gather(*map(one, range(asked.count))))
        for answer in map(json.loads, asked.answers):
            await port.resolve(tally, answer)
        if asked.then == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if asked.then == "leave":
            await port.leave(tally)
            return {}
        rested = await asyncio.gather(*map(port.rest, handles.values()))
        return dict(zip(handles, rested, strict=True))


def main() -> None:
    """Live once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--flow", choices=FLOWS, default="reference")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--acknowledged", type=Path, required=True)
    parser.add_argument("--answers", nargs="*", default=[], help="JSON, one for each doubt")
    parser.add_argument("--plant", choices=PLANTS)
    parser.add_argument("--then", choices=("leave", "die"))
    asked = parser.parse_args()
    if asked.plant:
        PLANTS[asked.plant]()
    sys.stdout.write(json.dumps(asyncio.run(watched(asked))) + "\n")


if __name__ == "__main__":
    main()
