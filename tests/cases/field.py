"""What the field cases share: definitions, lives of an engine, waiting with a deadline."""

import asyncio
import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any, Self, TypeVar

from tallystick.core.compiler import compile_source
from tallystick.core.definition import Definition
from tests.checker import judge
from tests.checker.rows import read as read_ledger
from tests.effects import log

ROOT = Path(__file__).parents[2]
TASKS = "tests.cases.tasks"
PATIENCE_S = 30
T = TypeVar("T")


def definition(source: str) -> Definition:
    """Compile a definition; `TASKS:` in it is where the tasks of the field cases are."""
    text = dedent(source).replace("TASKS:", f"{TASKS}:")
    return compile_source(text.encode(), "case.yaml").definition


def until(said: str, look: Callable[[], T], seconds: float = PATIENCE_S) -> T:
    """Look again and again until it is so. Fails, saying what was waited for, after a deadline."""
    ends = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < ends, f"waited {seconds} s for: {said}"
        threading.Event().wait(0.002)
    return found


async def until_so(said: str, look: Callable[[], T], seconds: float = PATIENCE_S) -> T:
    """The same, while everything else on this loop goes on."""
    ends = time.monotonic() + seconds
    found = look()
    while not found:
        assert time.monotonic() < ends, f"waited {seconds} s for: {said}"
        await asyncio.sleep(0.002)
        found = look()
    return found


class World:
    """A folder with a store, an effect log, and the starts that were acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store, self.effect_log = folder / "case.db", folder / "effects.jsonl"
        self.acknowledged = folder / "acknowledged.jsonl"

    @contextmanager
    def life(self, source: str, *inputs: Any, **more: Any) -> Iterator["Life"]:
        """An engine in a process of its own that starts a run for each input; see `lives`."""
        with Life(self, source, [*inputs], more) as life:
            yield life

    def run(self, source: str, *inputs: Any, **more: Any) -> dict[str, Any]:
        """A whole life; what it said at the end."""
        with self.life(source, *inputs, **more) as life:
            return life.last_words()

    def effects(self) -> list[dict[str, Any]]:
        return log.read(self.effect_log)

    def judged(self, *, final: bool = True, complete: bool = True) -> list[Any]:
        """What the checker finds wrong."""
        promised = sorted({line["run"] for line in log.read(self.acknowledged)})
        return judge.check(
            self.store, self.effects(), acknowledged=promised, final=final, complete=complete
        )

    def engines(self) -> list[Any]:
        """How every engine of this store ended, in order: `drained`, a list, None for not."""
        return [row["ended"] for row in read_ledger(self.store).engines]


class Life:
    """An engine process. It is killed at the end of the block if it is still there.

    No faults and no checks but what every engine does, unless `environment` says TALLY_TESTING.
    """

    def __init__(self, world: World, source: str, inputs: list[Any], more: dict[str, Any]) -> None:
        environment = {log.PATH: str(world.effect_log), **more.pop("environment", {})}
        asked = {
            "store": str(world.store),
            "source": dedent(source).replace("TASKS:", f"{TASKS}:"),
            "inputs": inputs,
            "acknowledged": str(world.acknowledged),
            **more,
        }
        self.folder = Path(tempfile.mkdtemp(prefix="life-", dir=world.folder))
        order = {"life": asked, "environment": environment, "folder": str(self.folder)}
        self.pid = _ask_nursery(order)
        self.status: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.status is None:
            self.send(signal.SIGKILL)
            self.status = _ask_nursery({"wait": self.pid})

    def send(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def said(self) -> list[str]:
        """The lines that it said so far."""
        out = self.folder / "out"
        return out.read_text("utf-8").split("\n")[:-1] if out.exists() else []

    def until(self, word: str) -> None:
        """Wait until it has said this."""
        until(f"a life to say {word}", lambda: word in self.said() or self.is_over())
        assert word in self.said(), (self.folder / "err").read_text("utf-8")[-3000:]

    def is_over(self, within_s: float = 0) -> bool:
        """Whether it has ended."""
        handle = os.pidfd_open(self.pid)
        try:
            return bool(select.select([handle], [], [], within_s)[0])
        finally:
            os.close(handle)

    def last_words(self, *, status: int = 0, seconds: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for its end; the JSON of its last line."""
        assert self.is_over(seconds), "it did not end"
        self.status = _ask_nursery({"wait": self.pid})
        trouble = (self.folder / "err").read_text("utf-8")[-3000:]
        assert self.status == status, (self.status, trouble)
        said = self.said()
        return json.loads(said[-1]) if said and said[-1].startswith("{") else {}


def tally(*words: Any, status: int, folder: Path, seconds: float = PATIENCE_S) -> Any:
    """Run the command `tally` in a folder, and expect how it ends; what it printed, as bytes."""
    with tally_process(*words, folder=folder) as process:
        said, trouble = process.communicate(timeout=seconds)
    assert process.returncode == status, (process.returncode, said[-2000:], trouble[-2000:])
    return subprocess.CompletedProcess(words, status, said, trouble)


@contextmanager
def tally_process(
    *words: Any, folder: Path, environment: dict[str, str] | None = None
) -> Iterator[Any]:
    """The command `tally` in a folder, killed at the end of the block if it is still there."""
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "tally"), *words],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            log.PATH: str(folder / "effects.jsonl"),
            **(environment or {}),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@cache
def _nursery() -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tests.cases.nursery"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    atexit.register(process.communicate)
    return process


def _ask_nursery(order: dict[str, Any]) -> int:
    nursery = _nursery()
    nursery.stdin.write(json.dumps(order) + "\n")
    nursery.stdin.flush()
    return int(nursery.stdout.readline())


def memory_of(name: str, *given: Any) -> int:
    """Bytes that a function of `lives` needs in a process of its own, at its peak."""
    folder = Path(tempfile.mkdtemp())
    order = {"life": {"only": name, "given": given}, "environment": {}, "folder": str(folder)}
    assert _ask_nursery({"wait": _ask_nursery(order)}) == 0, (folder / "err").read_text("utf-8")
    told = json.loads((folder / "out").read_text("utf-8"))
    shutil.rmtree(folder)
    return told["grown"]
