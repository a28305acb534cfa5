"""The demo itself, smaller, as a real process; and how it decides a doubt."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from engine_process import look_up, process
from faults import Fault
from home import ORDERS_CSV, Home
from judge import compare, gather
from ledger import MAIL, read_ledger
from make_orders import read_orders
from rules import Result
from wire import LostError, get_async, post

import tallystick as ts
from tests.checker.judge import check
from tests.examples.conftest import ORDERS, Serve

MESSAGE = {"reference": "TS-10001", "to": "noor@example.com", "digest": "d", "text": "t"}
ENDS_WITHIN_MS = 20_000


@contextmanager
def demo(folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Start the demo in a process group of its own, as a shell does."""
    command = [sys.executable, str(ORDERS), "--seed", "7", "--orders", "30", "--kills", "3"]
    with subprocess.Popen(
        [*command, "--in", str(folder), *more],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def processes_about(folder: Path) -> list[int]:
    """Find every process that was told this folder: the demo, its engine and its servers."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return found


def effects_of(home: Home) -> list[dict[str, object]]:
    """Everything that the servers did, as the checker reads it."""
    return [
        {"identity": line["key"], "dispatch": int(line["attempt"].partition(".")[2])}
        for ledger in (home.charges, home.messages)
        for line in read_ledger(ledger)
    ]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_small_demo_ends_with_every_order_exactly_once(tmp_path: Path):
    folder = tmp_path / "files"
    with demo(folder) as process:
        told, _ = process.communicate()
    assert process.returncode == 0, told
    rows = {line[:37].strip(): line.split()[-2:] for line in told.splitlines() if line[:3] == "   "}
    assert rows["orders"] == ["30", "30"]
    assert rows["charges"] == rows["invoices sent"] == rows["accepted"] == ["29", "29"]
    assert rows["duplicates"] == rows["lost"] == ["0", "0"]
    assert rows["kills survived"] in (["0", str(kills)] for kills in (1, 2, 3))
    for one in ("undisturbed", "killed"):
        home = Home(folder / one)
        found = compare(gather(home))
        assert (found.good, found.orders, found.refused) == (True, 30, 1)
        assert check(home.database, effects_of(home)) == []
    if Path("/proc").is_dir():
        assert processes_about(folder) == []


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_demo_that_is_stopped_leaves_no_process_behind(tmp_path: Path, how: signal.Signals):
    """Ctrl-C reaches all of them, `kill -9` only the demo: the others find that it is gone."""
    folder = tmp_path / "files"
    with demo(folder) as process, ExitStack() as stack:
        assert process.stdout
        assert any("kill  1" in line for line in process.stdout), "it is killing engines"
        alive = [os.pidfd_open(pid) for pid in processes_about(folder)]
        for handle in alive:
            stack.callback(os.close, handle)
        assert len(alive) >= 3, "the demo and two servers; perhaps an engine"
        if how == signal.SIGINT:
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        for handle in alive:
            assert select.select([handle], [], [], ENDS_WITHIN_MS / 1_000)[0]
        assert process.wait() == (130 if how == signal.SIGINT else -how)
    for pid in processes_about(folder):  # an engine that was just being started
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            assert select.select([handle], [], [], ENDS_WITHIN_MS / 1_000)[0]
            os.close(handle)
    assert processes_about(folder) == []


# ---- a doubt ----


async def test_what_the_ledger_does_not_have_after_quiet_never_happened(serve: Serve):
    server = serve(MAIL)
    assert await look_up(f"http://127.0.0.1:{server.port}", "TS-10001") is None


async def test_a_message_that_is_still_on_its_way_is_waited_for(serve: Serve):
    """The client has given up, the ledger is empty, and yet the message goes out."""
    server = serve(MAIL, {("TS-10001", 1): Fault.STALL}, hang_ms=150)
    url = f"http://127.0.0.1:{server.port}"
    with pytest.raises(LostError):
        post(f"{url}/invoices", MESSAGE, {"Idempotency-Key": "k"}, timeout_seconds=0.02)
    assert (await get_async(f"{url}/effects?reference=TS-10001")).body["effects"] == []
    line = await look_up(url, "TS-10001")
    assert line is not None
    assert line["digest"] == "d"


@pytest.mark.slow
async def test_a_refused_order_bears_the_code_of_its_problem(tmp_path: Path):
    row = replace(read_orders(ORDERS_CSV)[0], email="nobody")
    async with ts.open(tmp_path / "orders.db", engine=True) as tally:
        result = await process(tally, row, Home(tmp_path))
    assert result == Result(row.number, row.country, row.currency, 0, "bad_email")
