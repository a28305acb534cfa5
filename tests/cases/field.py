"""What the field cases share: definitions from text, lives of an engine, waiting with a deadline."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar

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
        time.sleep(0.002)
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
    """An engine process. It is killed at the end of the block if it is still there."""

    def __init__(self, world: World, source: str, inputs: list[Any], more: dict[str, Any]) -> None:
        self._folder = world.folder
        environment = {"TALLY_TESTING": "1", log.PATH: str(world.effect_log)}
        environment |= {str(k): str(v) for k, v in more.pop("environment", {}).items()}
        asked = {
            "store": str(world.store),
            "source": dedent(source).replace("TASKS:", f"{TASKS}:"),
            "inputs": inputs,
            "acknowledged": str(world.acknowledged),
            **more,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cases.lives", json.dumps(asked)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def line(self) -> str:
        """The next line that it says."""
        return self.process.stdout.readline().strip()

    def last_words(self, *, status: int = 0, seconds: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for its end; the JSON of its last line."""
        said, trouble = self.process.communicate(timeout=seconds)
        assert self.process.returncode == status, (self.process.returncode, trouble[-3000:])
        lines = said.strip().split("\n")
        return json.loads(lines[-1]) if lines[-1].startswith("{") else {}
