"""One life of the engine: admit every order, run until all have ended, answer the doubts.

    python engine_process.py FOLDER      (with the environment that home.py names)

Nobody tells it whether it is the first life or the ninth. It starts every order by its number as
idempotency key: an order that is known is the same run again. Then it does what a person at a
mail provider's log would do about doubts:

    the ledger has it      it was done, with this output. True whenever it is seen
    the ledger has it not  it never happened, provided that no run has anything in flight and
                           that every connection ever made to the server is closed. "Not there"
                           proves nothing while somebody may still write it

Everything that touches the engine is in `admit`, `look` and `resolve`; the rest is the business
above.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from home import MAIL_URL, ORDER_YAML, ORDERS_CSV, PAYMENT_URL, SUMMARY_YAML, Home
from make_orders import read_orders
from rules import Receipt, Result, Row, Sent, receipt_from, sent_from
from wire import get

import tallystick as ts

LOOK_EVERY_SECONDS: Final = 0.05
QUIET_WITHIN_MS: Final = 5_000
LIFE_SECONDS_MAX: Final = 90.0
SUMMARY_KEY: Final = "summary"
ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})

Read = Callable[[Mapping[str, Any]], Receipt | Sent]

# Which server to ask about a step in doubt, and how its ledger's line reads as the step's output.
ASK: Final[Mapping[str, tuple[str, Read]]] = {
    "charge": (PAYMENT_URL, receipt_from),
    "send_invoice": (MAIL_URL, sent_from),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One run as the engine tells it. `doubt` names the step in doubt, or is None.

    `output` is None unless it succeeded, `failure` is empty unless it failed.
    """

    number: str
    run_id: str
    status: str
    doubt: str | None
    output: Mapping[str, Any] | None
    failure: str

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def stands_still(self) -> bool:
        return self.ended or self.status == "in_doubt"


# ---- the engine ----


async def admit(tally: ts.Tally, rows: Sequence[Row]) -> dict[str, str]:
    """Start every order that is not started yet; return run id by order number."""
    runs = await asyncio.gather(
        *(tally.start(str(ORDER_YAML), input=asdict(row), key=row.number) for row in rows)
    )
    return {row.number: run.id for row, run in zip(rows, runs, strict=True)}


async def look(tally: ts.Tally, runs: Mapping[str, str]) -> list[Seen]:
    """Return every order's run as it stands, in the order of their numbers."""
    raise NotImplementedError


async def resolve(tally: ts.Tally, run: Seen, output: Mapping[str, Any] | None) -> None:
    """Record the answer to a doubt: done with `output`, or never happened (None)."""
    assert run.doubt is not None
    if output is None:
        await tally.resolve(
            run.run_id,
            run.doubt,
            outcome="never_happened",
            reason="not in the server's ledger, and it is quiet",
        )
    else:
        await tally.resolve(
            run.run_id,
            run.doubt,
            outcome="succeeded",
            output=output,
            reason="in the server's ledger",
        )


# ---- the business ----


async def live(home: Home) -> None:
    """Bring every order to its end, then summarise. What a kill leaves is for the next life."""
    async with ts.open(str(home.database), engine=True) as tally:
        runs = await admit(tally, read_orders(ORDERS_CSV))
        seen = await until_all_ended(tally, runs, home)
        results = [asdict(result_of(run)) for run in seen]
        summary = await tally.start(str(SUMMARY_YAML), input={"results": results}, key=SUMMARY_KEY)
        _write(
            home.ended, {"runs": [_told(run) for run in seen], "summary": await summary.result()}
        )


async def until_all_ended(tally: ts.Tally, runs: Mapping[str, str], home: Home) -> list[Seen]:
    """Answer doubts as they come up until every run has ended; return the runs."""
    while True:
        seen = await look(tally, runs)
        if all(run.ended for run in seen):
            return seen
        absence_proves = all(run.stands_still for run in seen) and await servers_are_quiet()
        for run in seen:
            if run.doubt is not None:
                await answer(tally, run, home, absence_proves=absence_proves)
        await asyncio.sleep(LOOK_EVERY_SECONDS)


async def answer(tally: ts.Tally, run: Seen, home: Home, *, absence_proves: bool) -> None:
    """Answer one doubt from the ledger of its server; leave it open if that proves nothing yet."""
    assert run.doubt is not None
    variable, read = ASK[run.doubt]
    url = f"{os.environ[variable]}/effects?reference={run.number}"
    lines = (await asyncio.to_thread(get, url, timeout_seconds=5)).body["effects"]
    if not lines and not absence_proves:
        return
    output = asdict(read(lines[0])) if lines else None
    await resolve(tally, run, output)
    _note(home.answers, {"number": run.number, "step": run.doubt, "done": output is not None})


async def servers_are_quiet() -> bool:
    """Say whether both servers have nothing left to do for connections made until now."""
    urls = [
        f"{os.environ[name]}/quiet?within_ms={QUIET_WITHIN_MS}" for name in (PAYMENT_URL, MAIL_URL)
    ]
    answers = await asyncio.gather(
        *(asyncio.to_thread(get, url, timeout_seconds=QUIET_WITHIN_MS / 1_000 + 5) for url in urls)
    )
    return all(answer.body["quiet"] for answer in answers)


def result_of(run: Seen) -> Result:
    """Say what became of an order, for the summary. A failure begins with the problem's code."""
    if run.output is not None:
        return Result(**run.output)
    return Result(run.number, "", "", 0, problem=run.failure.partition(":")[0])


def _told(run: Seen) -> dict[str, Any]:
    return {"number": run.number, "status": run.status, **asdict(result_of(run))}


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
