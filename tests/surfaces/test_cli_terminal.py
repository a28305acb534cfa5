"""At a terminal: progress moves, a doubt is asked at once, Ctrl-C stops in order."""

import json
import os
import pty
import select
import subprocess
import sys

import pytest

from tests import project
from tests.surfaces.fake_client import RUN, document, doubt, doubtful, event

pytestmark = pytest.mark.slow
TIMEOUT = 20
QUESTION = "[d/n/l] "
OUTPUT = "its output, as JSON or @FILE (nothing: back): "


class Terminal:
    """A child process whose three streams are one terminal, and what it wrote so far."""

    def __init__(self, tmp_path, *words, environ=None, **scenario):
        self.log = tmp_path / "log"
        self.master, slave = pty.openpty()
        scenario = json.dumps({"log": str(self.log), **scenario})
        inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.surfaces.terminal_child", scenario, *words],
            stdin=slave, stdout=slave, stderr=slave,
            cwd=project.ROOT,
            start_new_session=True,
            env={**inherited, "TERM": "xterm", "COLUMNS": "100", **(environ or {})},
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    def until(self, text):
        """Read until the child wrote this."""
        while text not in self.seen:
            if not self._read():
                raise AssertionError(f"{text!r} never came:\n{self.seen}")
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, text):
        """Press these keys."""
        os.write(self.master, text.encode())

    def ended(self):
        """The exit code, and what was left to read."""
        while self._read():
            pass
        return self.process.wait(TIMEOUT)

    def done(self):
        """What the client was told, in order."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def _read(self):
        ready, _, _ = select.select([self.master], [], [], TIMEOUT)
        try:
            chunk = os.read(self.master, 65_536) if ready else b""
        except OSError:  # how Linux says that the other side is closed
            chunk = b""
        self.seen += chunk.decode("utf-8", "replace")
        return bool(chunk)


@pytest.fixture
def terminal(tmp_path):
    """Start children; none of them outlives the test."""
    started = []

    def start(*words, **scenario):
        started.append(Terminal(tmp_path, *words, **scenario))
        return started[-1]

    yield start
    for child in started:
        if child.process.poll() is None:
            child.process.kill()
        child.process.wait()
        os.close(child.master)


def test_a_doubt_is_asked_at_once_and_its_output_checked(terminal):
    child = terminal(
        "run", "a.yaml", settles=[doubtful(), doubtful(), document()], refuse='"no"',
        events=[event("AttemptDoubted", step="invoice", reason="x")],
    )  # fmt: skip
    child.until("In doubt: invoice, attempt 1")
    child.until(QUESTION)
    child.type("what\n")
    child.until("d, n or l; not what")
    child.until(QUESTION)
    child.type("d\n")
    child.until(OUTPUT)
    child.type("not json\n")
    child.until("not JSON")
    child.until(OUTPUT)
    child.type('"no"\n')
    child.until("/total is not an integer")
    child.until(QUESTION)
    child.type("d\n")
    child.until(OUTPUT)
    child.type('{"receipt": "R-1"}\n')
    child.until("succeeded")
    assert child.ended() == 0
    assert child.done() == [["invoice", "succeeded", '{"receipt":"R-1"}']]


def test_not_done_permits_it_again(terminal):
    child = terminal("run", "a.yaml", settles=[doubtful(), document()])
    child.until(QUESTION)
    child.type("n\n")
    assert child.ended() == 0
    assert child.done() == [["invoice", "never_happened", None]]


@pytest.mark.parametrize("keys", ["l\n", "\n", "\x04"], ids=["leave", "nothing", "end of input"])
def test_what_is_left_stays_in_doubt(terminal, keys):
    two = doubtful(doubt("invoice"), doubt("publish"))
    child = terminal("run", "a.yaml", settles=[two])
    for step in ("invoice", "publish"):
        child.until(f"In doubt: {step}")
        child.until(QUESTION)
        child.type(keys)
    assert child.ended() == 3
    assert f"tally resolve {RUN} publish" in child.seen
    assert not child.log.exists()


def test_a_doubt_is_asked_while_the_rest_of_the_run_goes_on(terminal):
    """`settled` never returns here: the event alone brings the question up."""
    child = terminal(
        "run", "a.yaml", settles=[None], run=doubtful(), events=[event("AttemptDoubted")]
    )
    child.until(QUESTION)
    child.type("\x03")
    child.until("to carry on: tally engine --until-idle")
    assert child.ended() == 130


@pytest.mark.parametrize("words", [("run", "a.yaml"), ("engine",)])
def test_ctrl_c_stops_in_order(terminal, words):
    child = terminal(*words, settles=[None], events=[event("RunAdmitted")])
    child.until("engine on" if words == ("engine",) else RUN)
    child.until("\n" if words == ("engine",) else "open")
    child.type("\x03")
    child.until("stopped: ")
    assert child.ended() == 130
    assert child.done() == [["stop", 10_000]]


def test_a_second_ctrl_c_ends_the_process_at_once(terminal):
    child = terminal("engine", settles=[None], stuck=True)
    child.until("engine on")
    child.type("\x03")
    child.until("stopping: ")
    child.type("\x03")
    assert child.ended() == -2  # killed by SIGINT, which a shell tells as 130


def test_a_stop_that_hangs_ends_a_second_after_the_grace(terminal):
    child = terminal("engine", settles=[None], stuck=True, grace_ms=100)
    child.until("engine on")
    child.type("\x03")
    assert child.ended() == 130


def test_as_json_nothing_is_asked(terminal):
    child = terminal("run", "a.yaml", "--json", settles=[doubtful()])
    assert child.ended() == 3
    assert QUESTION not in child.seen


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_is_obeyed(terminal, environ, coloured):
    child = terminal("show", RUN, environ=environ)
    assert child.ended() == 0
    assert ("\x1b[" in child.seen) is coloured
    assert "orders" in child.seen


def test_poison_reaches_no_terminal(terminal):
    poison = "\x1b]0;owned\x07"
    child = terminal(
        "run", "a.yaml", settles=[document(workflow=poison)],
        events=[event("AttemptPrepared", step=poison, attempt=1)],
    )  # fmt: skip
    assert child.ended() == 0
    assert poison not in child.seen
    assert "\\x1b]0;owned\\x07" in child.seen
