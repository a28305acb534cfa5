"""One life of the engine: admit every order, run until all have ended, answer the doubts.

    python engine_process.py FOLDER      (with the environment that home.py names)

Nobody tells it whether it is the first life or the ninth. It starts every order by its number as
idempotency key: an order that is known is the same run again. Then it waits for the results, and
does what a person at a mail provider's log would do about a doubt:

    the ledger has it      it was done, with this output
    the ledger has it not  it never happened, if all connections that were made to the server before
                           the question are closed. "Not there" proves nothing while somebody may
                           still write it
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from home import MAIL_URL, ORDER_YAML, PAYMENT_URL, SUMMARY_YAML, Home
from make_orders import read_orders
from rules import Receipt, Result, Row, Sent, receipt_from, sent_from
from wire import get_async

import tallystick as ts

QUIET_WITHIN_MS: Final = 5_000
LIFE_SECONDS_MAX: Final = 90.0
SUMMARY_KEY: Final = "summary"

Read = Callable[[Mapping[str, Any]], Receipt | Sent]

# Which server to ask about a step in doubt, and how its ledger's line reads as the step's output.
ASK: Final[Mapping[str, tuple[str, Read]]] = {
    "charge": (PAYMENT_URL, receipt_from),
    "send_invoice": (MAIL_URL, sent_from),
}


async def live(home: Home) -> None:
    """Bring every order to its end, then summarise. What a kill leaves is for the next life."""
    async with ts.open(home.database, engine=True) as tally:
        rows = read_orders(home.orders)
        results = await asyncio.gather(*(process(tally, row, home) for row in rows))
        given = [asdict(result) for result in results]
        summary = await tally.run(SUMMARY_YAML, {"results": given}, key=SUMMARY_KEY)
        runs = await tally.list(workflow="order", limit=len(rows))
    status = {run.key: run.status for run in runs}
    told = [{**result, "status": status.get(result["number"])} for result in given]
    _write(home.ended, {"runs": told, "summary": summary})


async def process(tally: ts.Tally, row: Row, home: Home) -> Result:
    """Bring one order to its end, whatever happened to it in earlier lives."""
    run = await tally.start(ORDER_YAML, input=asdict(row), key=row.number)
    while True:
        try:
            return Result(**await run.result())
        except ts.RunFailed:
            return refusal(row, await run.status())
        except ts.RunInDoubt:
            for doubt in (await run.status()).doubts:
                await answer(tally, run.id, doubt.step, row, home)


def refusal(row: Row, run: ts.RunInfo) -> Result:
    """Say why an order was refused: `order.yaml` fails with the problem's code, then the reason."""
    problem = str((run.failure or {}).get("message")).partition(":")[0]
    return Result(row.number, row.country, row.currency, 0, problem)


async def answer(tally: ts.Tally, run: str, step: str, row: Row, home: Home) -> None:
    """Decide one doubt by the ledger of its server."""
    variable, read = ASK[step]
    line = await look_up(os.environ[variable], row.number)
    if line is None:
        reason = "not in the server's ledger, and no request is on its way"
        await tally.resolve(run, step, outcome="never_happened", reason=reason)
    else:
        output = asdict(read(line))
        reason = f"{line['id']} in the server's ledger"
        await tally.resolve(run, step, outcome="succeeded", output=output, reason=reason)
    _note(home.answers, {"number": row.number, "step": step, "done": line is not None})


async def look_up(server: str, number: str) -> Mapping[str, Any] | None:
    """Return the ledger's line about an order; None: there is none, and never will be.

    There is none yet while a request may be on its way. So first wait until the server has closed
    every connection that it had, which settles what any of them brought.
    """
    while True:
        quiet = await get_async(f"{server}/quiet?within_ms={QUIET_WITHIN_MS}")
        told = await get_async(f"{server}/effects?reference={number}")
        found: list[Mapping[str, Any]] = told.body["effects"]
        if found:
            return found[0]
        if quiet.body["quiet"]:
            return None


def _write(path: Path, value: object) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(value, indent=1), encoding="utf-8")
    draft.replace(path)


def _note(path: Path, value: object) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")


def _end_with_the_parent() -> None:
    """End at once when standard input closes: the process that started this one is gone."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


async def main(folder: Path) -> None:
    """Live, but not for ever."""
    async with asyncio.timeout(LIFE_SECONDS_MAX):
        await live(Home(folder))


if __name__ == "__main__":
    _end_with_the_parent()
    asyncio.run(main(Path(sys.argv[1])))
