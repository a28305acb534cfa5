"""The receiver of the crash tests does what it is told, and its log never lies."""

import http.client
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.checker import story
from tests.effects import log
from tests.effects.client import ROOT, EffectServer, Refused, ask


@dataclass
class Context:
    run_id: str = "run"
    step: str = "charge"
    attempt: int = 1
    dispatch: int = 1
    idempotency_key: str = "ab" * 32


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with EffectServer(tmp_path_factory.mktemp("effects") / "log.jsonl") as started:
        yield started


@pytest.mark.parametrize(
    ("order", "happens", "answers"),
    [
        ("answer", True, True),
        ("late:0.01", True, True),
        ("close", True, False),
        ("hang", True, False),
        ("refuse", False, False),
        ("hang-first", False, False),
    ],
)
def test_the_receiver_behaves_as_told(server, order, happens, answers):
    before = len(server.effects())
    server.behave(order)
    if answers:
        assert ask(server.port, Context(), {"x": 1}) == {"done": {"x": 1}}
    else:
        with pytest.raises((OSError, http.client.HTTPException, Refused)):
            ask(server.port, Context(), {"x": 1}, timeout_s=0.2)
    assert len(server.effects()) - before == happens
    ask(server.port, Context(), {"x": 2})
    assert server.effects()[-1]["body"] == {"x": 2}


def test_a_receiver_that_deduplicates_does_it_once_and_answers_the_same(tmp_path):
    with EffectServer(tmp_path / "log.jsonl", deduplicate=True) as server:
        answers = [ask(server.port, Context(dispatch=n), {"x": n}) for n in (1, 2)]
        assert answers == [{"done": {"x": 1}}] * 2
        assert [line["dispatch"] for line in server.effects()] == [1]


def test_the_receiver_sees_whether_the_dispatch_was_on_disk(tmp_path):
    db, _ = story.tell(tmp_path / "story.db")
    db.close()
    known = story.identity("flying", "charge", "", 1).hex()
    with EffectServer(tmp_path / "log.jsonl", store=tmp_path / "story.db") as server:
        ask(server.port, Context(idempotency_key=known), {})
        ask(server.port, Context(idempotency_key=known, dispatch=2), {})
        ask(server.port, Context(), {})
        assert [line["on_disk"] for line in server.effects()] == [True, False, False]


def test_a_recorded_effect_is_there_after_a_kill(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from tests.effects.log import record_effect\n"
        "from tests.effects.test_effects import Context\n"
        "record_effect(sys.argv[1], Context(), x=1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    done = subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "PYTHONPATH": "."})
    assert done.returncode == -signal.SIGKILL
    (line,) = log.read(tmp_path / "log")
    assert (line["run"], line["node"], line["attempt"]) == ("run", "charge", 1)
    assert line["body"] == {"x": 1}
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
