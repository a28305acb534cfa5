"""The demo: 300 orders, twice, and what the servers' ledgers say about them.

First undisturbed. Then in a new folder with servers that answer late, hang, or hang up after
doing the work, while the engine's process is killed (`kill -9`) again and again. In the end the
ledgers must not show any of that: every accepted order charged once and invoiced once, every
wrong one refused, and the same amounts in both passes. Anything else ends the demo with status 1.

The seed decides the servers' faults and the moments of the kills. A moment is either so many
effects into the work or so many milliseconds into a life, which catches the engine while it
starts and recovers. What exactly is in flight then is up to the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from home import HERE, INVOICES, MAIL_URL, ORDERS_CSV, PAYMENT_URL, Home
from judge import Comparison, amounts, compare, gather
from wire import get

FAULTS: Final = {
    "payment": "late=6,stall=2,hang=2,drop=8,error=4,busy=5",
    "mail": "late=6,stall=2,hang=2,drop=6,error=3,busy=5",
}
ORDERS: Final = 300
KILLS: Final = 13
START_KILL_SECONDS: Final = (0.2, 1.6)
LIFE_SECONDS_MIN: Final = 0.2
NEW_EFFECTS_MIN: Final = 5
JITTER_SECONDS_MAX: Final = 0.02
PASS_SECONDS_MAX: Final = 120.0
SERVER_START_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.004
LOG_TAIL_LINES: Final = 20
PROBLEMS_SHOWN_MAX: Final = 20


INTRODUCTION: Final = """\
{orders} orders become {orders} runs of order.yaml: check, price, charge, write an invoice, send it.
Two servers stand outside. The payment server recognises a key that it has seen; the mail server
recognises nothing, and sends whatever it gets. Each writes down in a ledger what it really did.
"""
DISTURBED: Final = """\
2. The same orders with kill -9 (seed {seed})
   The servers answer late, hang, fail, or hang up after doing the work, and the engine is killed
   at moments drawn by lot. Each new life finds out from its store what the last one was doing;
   where nobody can know whether a message went out, the mail server's ledger is asked."""


class DemoError(Exception):
    """The demo could not go on; the text says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is to be shown: the first `orders` orders, `kills` kills."""

    orders: int
    kills: int
    seed: int


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill: `seconds` after the ledgers hold `effects` lines.

    `effects` None means after the start of the life.
    """

    effects: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass showed. `counters` are the servers' own, by name."""

    comparison: Comparison
    amounts: Mapping[str, tuple[int, str]]
    kills: int
    answers_done: int
    answers_not_done: int
    counters: Mapping[str, Mapping[str, int]]
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run both passes and print the comparison; 0 if it is as it must be, 130 after Ctrl-C."""
    options = _options(argv)
    folder = make_folder(options.folder)
    good = False
    try:
        good = run_both(folder, Plan(options.orders, options.kills, options.seed))
    except DemoError as error:
        say(f"the demo could not be finished: {error}")
    except KeyboardInterrupt:
        say("\nstopped")
        _remove(folder, options)
        return 130
    if good:
        _remove(folder, options)
    else:
        say(f"the files are in {folder}; repeat with --seed {options.seed}")
    return 0 if good else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="orders", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, help="repeat these faults and kill moments")
    parser.add_argument("--orders", type=int, default=ORDERS, help="only the first N orders")
    parser.add_argument("--kills", type=int, default=KILLS, help="how often the engine is killed")
    parser.add_argument("--keep", action="store_true", help="keep the files of a good demo too")
    parser.add_argument("--in", dest="folder", type=Path, help="a new folder for the files")
    options = parser.parse_args(argv)
    if options.seed is None:
        options.seed = secrets.randbelow(100_000)
    return options


def _remove(folder: Path, options: argparse.Namespace) -> None:
    if options.keep or options.folder is not None:
        say(f"the files are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


def run_both(folder: Path, plan: Plan) -> bool:
    """Run the two passes in `folder`, print what they showed, and say whether it is good."""
    say(INTRODUCTION.format(orders=plan.orders))
    say("1. Undisturbed")
    calm = run_pass(Home(folder / "undisturbed"), plan.orders, (), None)
    say(f"   All orders have ended after {calm.seconds:.1f} s.\n")
    say(DISTURBED.format(seed=plan.seed))
    kills = plan_kills(random.Random(plan.seed), 2 * calm.comparison.accepted, plan.kills)
    hard = run_pass(Home(folder / "killed"), plan.orders, kills, plan.seed)
    say(f"   All orders have ended after {hard.seconds:.1f} s, in {hard.kills + 1} lives.\n")
    say("3. What the ledgers of the two servers say")
    say(table(calm, hard) + "\n")
    problems = problems_of(calm, hard, kills_min=plan.kills // 3)
    say(verdict(problems))
    return not problems


def make_folder(wanted: Path | None) -> Path:
    """Return a new folder: `wanted`, or a temporary one."""
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="tally-orders-"))
    wanted.mkdir(parents=True)
    return wanted.resolve()


# ---- one pass ----


def run_pass(home: Home, orders: int, kills: Sequence[Moment], seed: int | None) -> Pass:
    """Run the first `orders` orders to their end. `seed` None means servers without faults."""
    home.invoices.mkdir(parents=True)
    home.orders.write_bytes(
        b"".join(ORDERS_CSV.read_bytes().splitlines(keepends=True)[: 1 + orders])
    )
    start = time.monotonic()
    with (
        server("payment", home.charges, seed) as payment,
        server("mail", home.messages, seed) as mail,
    ):
        where = {PAYMENT_URL: payment, MAIL_URL: mail, INVOICES: str(home.invoices)}
        survived = live_and_die(home, where, kills, until=start + PASS_SECONDS_MAX)
        counters = {"payment": counters_of(payment), "mail": counters_of(mail)}
    evidence = gather(home)
    done, not_done = count_answers(home)
    return Pass(
        compare(evidence),
        amounts(evidence),
        survived,
        done,
        not_done,
        counters,
        time.monotonic() - start,
    )


@contextlib.contextmanager
def server(name: str, ledger: Path, seed: int | None) -> Iterator[str]:
    """Start one server in a process of its own, yield its URL, and end it."""
    faults = [] if seed is None else ["--faults", FAULTS[name], "--seed", str(seed)]
    command = [sys.executable, str(HERE / "servers.py"), name, str(ledger), *faults]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{read_port(name, process.stdout)}"
        finally:
            process.terminate()


def read_port(name: str, output: IO[bytes]) -> int:
    """Wait for a server's first line and return the port in it. Raises `DemoError`."""
    ready, _, _ = select.select([output], [], [], SERVER_START_SECONDS_MAX)
    line = output.readline() if ready else b""
    if not line:
        raise DemoError(f"the {name} server did not start")
    return int(json.loads(line)["port"])


def counters_of(url: str) -> dict[str, int]:
    """Ask a server for its counters."""
    return get(f"{url}/counters", timeout_seconds=5).body


def count_answers(home: Home) -> tuple[int, int]:
    """Return how many doubts were answered with done, and with not done."""
    lines = home.answers.read_text(encoding="utf-8").splitlines() if home.answers.exists() else []
    done = sum(bool(json.loads(line)["done"]) for line in lines)
    return done, len(lines) - done


# ---- lives and deaths ----


def plan_kills(lots: random.Random, effects: int, kills: int) -> list[Moment]:
    """Choose the moments by lot: most of them evenly in the work, a few right after a start."""
    at_start = math.ceil(kills / 5)
    at = sorted(1 + int(lots.random() * effects * 0.85) for _ in range(kills - at_start))
    moments = [Moment(effect, lots.random() * JITTER_SECONDS_MAX) for effect in at]
    for _ in range(at_start):
        place = int(lots.random() * (len(moments) + 1))
        moments.insert(place, Moment(None, lots.uniform(*START_KILL_SECONDS)))
    return moments


def live_and_die(
    home: Home, where: Mapping[str, str], kills: Sequence[Moment], *, until: float
) -> int:
    """Start the engine after each kill again, and once to let it end; return the kills."""
    survived = 0
    for moment in kills:
        with engine(home, where) as life:
            age = kill_at(life, moment, home, until)
        if age is None:
            break
        survived += 1
        say(
            f"   kill {survived:2}   {age:5.2f} s after the start of a life,"
            f" {count_lines(home.charges):3} charges and {count_lines(home.messages):3} messages"
        )
    else:
        with engine(home, where) as life:
            wait_for_the_end(life, home, until)
    if life.returncode != 0:
        raise DemoError(f"the engine ended with status {life.returncode}:\n{tail(home.log)}")
    return survived


@contextlib.contextmanager
def engine(home: Home, where: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start one life of the engine; it is dead, and its status read, when this ends."""
    command = [sys.executable, str(HERE / "engine_process.py"), str(home.folder)]
    with (
        home.log.open("ab") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env={**os.environ, **where}
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def kill_at(
    life: subprocess.Popen[bytes], moment: Moment, home: Home, until: float
) -> float | None:
    """Kill this life at its moment; return its age in seconds, None if it had ended by itself.

    A life that is to be killed in its work does some first, even where the one before overshot.
    """
    start = time.monotonic()
    effects = (
        0 if moment.effects is None else max(moment.effects, effects_in(home) + NEW_EFFECTS_MIN)
    )
    while effects_in(home) < effects:
        if life.poll() is not None:
            return None
        if time.monotonic() > until:
            raise _too_late(home)
        time.sleep(POLL_SECONDS)
    time.sleep(max(moment.seconds, LIFE_SECONDS_MIN - (time.monotonic() - start)))
    life.kill()
    return time.monotonic() - start if life.wait() < 0 else None


def effects_in(home: Home) -> int:
    """Return how many effects the two ledgers hold."""
    return count_lines(home.charges) + count_lines(home.messages)


def wait_for_the_end(life: subprocess.Popen[bytes], home: Home, until: float) -> None:
    """Wait until this life ends by itself. Raises `DemoError` at `until`, a monotonic instant."""
    try:
        life.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise _too_late(home) from error


def _too_late(home: Home) -> DemoError:
    return DemoError(f"no end within {PASS_SECONDS_MAX:.0f} s:\n{tail(home.log)}")


def count_lines(path: Path) -> int:
    """Return the number of whole lines, 0 if there is no such file."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def tail(path: Path) -> str:
    """Return the last lines of a log."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return "\n".join(lines[-LOG_TAIL_LINES:])


# ---- what it showed ----


def problems_of(calm: Pass, hard: Pass, *, kills_min: int) -> list[str]:
    """Return everything that is not as the demo promises, as sentences."""
    problems = [
        f"{name}: {sentence}"
        for name, one in (("undisturbed", calm), ("killed", hard))
        for sentence in (*one.comparison.duplicates, *one.comparison.lost, *one.comparison.wrong)
    ]
    if calm.amounts != hard.amounts:
        problems.append("the two passes charged different amounts")
    if hard.kills < kills_min:
        problems.append(f"only {hard.kills} kills before all had ended, which shows little")
    return problems


def verdict(problems: Sequence[str]) -> str:
    """Return the last word, with the first problems if there are any."""
    if not problems:
        return "Every order exactly once."
    more = len(problems) - PROBLEMS_SHOWN_MAX
    return "\n".join(
        [
            f"Not as it must be, {len(problems)} findings:",
            *problems[:PROBLEMS_SHOWN_MAX],
            *([f"and {more} more"] if more > 0 else []),
        ]
    )


def table(calm: Pass, hard: Pass) -> str:
    """Return the comparison for people."""
    rows = [(name, value(calm), value(hard)) for name, value in _ROWS]
    head = f"   {'':34}{'undisturbed':>12}{'killed':>10}"
    return "\n".join([head, *(f"   {name:34}{a:>12}{b:>10}" for name, a, b in rows)])


_ROWS: Final = (
    ("orders", lambda one: one.comparison.orders),
    ("  refused, as they should be", lambda one: one.comparison.refused),
    ("  accepted", lambda one: one.comparison.accepted),
    ("charges", lambda one: one.comparison.charges),
    ("invoices written", lambda one: one.comparison.files),
    ("invoices sent", lambda one: one.comparison.messages),
    ("kills survived", lambda one: one.kills),
    ("requests to the payment server", lambda one: one.counters["payment"]["requests"]),
    ("  known again by their key", lambda one: one.counters["payment"]["deduplicated"]),
    ("requests to the mail server", lambda one: one.counters["mail"]["requests"]),
    ("doubts answered: it was sent", lambda one: one.answers_done),
    ("doubts answered: it was not sent", lambda one: one.answers_not_done),
    ("duplicates", lambda one: len(one.comparison.duplicates)),
    ("lost", lambda one: len(one.comparison.lost)),
)


def say(text: str) -> None:
    """Print at once: somebody is watching."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
