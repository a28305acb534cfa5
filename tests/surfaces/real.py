"""The command `tally` as its users have it: processes, a folder, a database on a disk."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

COMMAND = "import sys; from tallystick.surfaces.cli import main; sys.exit(main())"
TIMEOUT = 30

TASKS = '''
import asyncio
from pathlib import Path

import tallystick as ts

HERE = Path(__file__).parent


def note(what, ctx):
    with open(HERE / "effects", "a") as file:
        file.write(f"{what} {ctx.idempotency_key}\\n")


@ts.task(effect="read_only")
async def echo(value=None):
    print("printed by a task")
    return value


@ts.task(effect="read_only")
async def broken(value=None):
    raise ValueError("no such thing")


@ts.task(effect="mutating")
async def unsure(value=None):
    raise ts.OutcomeUnknown("the line went dead")


@ts.task(effect="mutating")
async def hang(value=None, *, ctx: ts.TaskContext):
    """Never ends, but where `calm` lies beside it."""
    note("hang", ctx)
    if not (HERE / "calm").exists():
        await asyncio.Event().wait()
    return value


@ts.task(effect="idempotent")
async def hang_same_key(value=None, *, ctx: ts.TaskContext):
    note("hang_same_key", ctx)
    if not (HERE / "calm").exists():
        await asyncio.Event().wait()
    return value


@ts.task(effect="mutating")
def gated(value=None, *, ctx: ts.TaskContext):
    """Ends once somebody opened the pipe `gate` to write."""
    note("gated", ctx)
    open(HERE / "gate").read()
    return value
'''


def definition(*calls, workflow="w", **first):
    """The text of a definition: steps that hand the input's `value` on, one after the other."""
    lines = ["tally: 1", f"workflow: {workflow}", "steps:"]
    for at, call in enumerate(calls):
        value = "${{ input.value }}" if at == 0 else f"${{{{ steps.s{at - 1}.output }}}}"
        lines += [f"  - id: s{at}", f"    call: work:{call}", f'    with: {{value: "{value}"}}']
    return "\n".join([*lines, f"output: ${{{{ steps.s{len(calls) - 1}.output }}}}", ""])


class Done:
    """A command that ended."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit code {self.code}\n{self.out}\n--- stderr\n{self.err}"

    @property
    def document(self):
        """Standard output as JSON."""
        return json.loads(self.out)

    @property
    def said(self):
        """Standard error as JSON, one value a line."""
        return [json.loads(line) for line in self.err.splitlines()]

    @property
    def refusal(self):
        """The refusal on standard error, its last line."""
        return self.said[-1]["error"]


class Running:
    """A command under way; what it says on standard error is read line by line."""

    def __init__(self, process):
        self.process = process
        self.pid = process.pid
        self.told = ""

    def until(self, text):
        """Read until it says this."""
        while text not in self.told:
            line = self.process.stderr.readline()
            assert line, f"it never said {text!r}:\n{self.told}"
            self.told += line
        return self

    def signal(self, number):
        self.process.send_signal(number)
        return self

    def ended(self):
        out, err = self.process.communicate(timeout=TIMEOUT)
        return Done(self.process.returncode, out, self.told + err)

    def kill(self):
        return self.signal(signal.SIGKILL).ended()


class Shop:
    """A folder with task functions, definitions, and a database once there is one."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.children = []
        (folder / "work.py").write_text(TASKS)

    def write(self, name, *calls, **more):
        (self.folder / name).write_text(definition(*calls, **more))
        return name

    def start(self, *words, **more):
        """A command, under way."""
        return Running(self.process(*words, stdin=subprocess.DEVNULL, **more))

    def process(self, *words, env=None, **streams):
        child = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            cwd=self.folder,
            env=environment() | (env or {}),
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        )
        self.children.append(child)
        return child

    def tally(self, *words, given="", **more):
        """A command, to its end."""
        child = self.process(*words, stdin=subprocess.PIPE, **more)
        out, err = child.communicate(given, timeout=TIMEOUT)
        return Done(child.returncode, out, err)

    def only_run(self):
        """The id of the only run."""
        ((run,),) = self.rows("SELECT run_id FROM tally_run")
        return run

    def rows(self, query):
        """What another program reads in the database."""
        uri = f"file:{self.folder}/.tally/tally.db?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as store:
            return store.execute(query).fetchall()

    def effects(self):
        """What tasks noted: (which, under which key), in order."""
        path = self.folder / "effects"
        return [tuple(line.split()) for line in path.read_text().splitlines()]

    def close(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.communicate()


def environment():
    """This process's, without what changes pages or says where the database is."""
    unset = ("NO_COLOR", "COLUMNS", "TALLY_DATABASE_URL")
    return {name: value for name, value in os.environ.items() if name not in unset}
