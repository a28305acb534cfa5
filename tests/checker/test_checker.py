"""The checker acquits a true story and convicts every planted lie, by name."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checker import effects as outside
from tests.checker.__main__ import main
from tests.checker.judge import check, doubts, in_flight
from tests.checker.lies import PLANTED, a_mutating_effect_happens_twice
from tests.checker.story import identity, tell

HERE = Path(__file__).parent


def judged(path, effects, **options):
    options = {"final": False, "complete": True, "applied": ("applied",)} | options
    return check(path, effects, acknowledged=["ended", "flying", "doubted"], **options)


def test_a_true_story_is_acquitted(tmp_path):
    db, effects = tell(tmp_path / "story.db")
    db.close()
    assert judged(tmp_path / "story.db", effects) == []


@pytest.mark.parametrize("lie", PLANTED)
def test_every_planted_lie_is_found(tmp_path, lie):
    plant, codes = PLANTED[lie]
    db, effects = tell(tmp_path / "story.db")
    plant(db, effects)
    db.close()
    found = {violation.code for violation in judged(tmp_path / "story.db", effects)}
    assert codes <= found


def test_at_the_end_no_acknowledged_run_is_left_at_work(tmp_path):
    db, effects = tell(tmp_path / "story.db")
    db.close()
    found = judged(tmp_path / "story.db", effects, final=True)
    assert [(violation.code, violation.run) for violation in found] == [("run-stuck", "flying")]


def test_an_acknowledged_event_is_missed(tmp_path):
    db, _ = tell(tmp_path / "story.db")
    db.close()
    promises = [{"run": "flying", "sequence": 4}, {"run": "flying", "sequence": 5}]
    found = check(tmp_path / "story.db", acknowledged=promises, final=False)
    assert [violation.code for violation in found] == ["event-lost"]


def test_what_may_go_in_doubt_and_what_is_in_doubt_are_named(tmp_path):
    db, _ = tell(tmp_path / "story.db")
    db.close()
    flying = {identity("flying", "charge", "", 1).hex(), identity("doubted", "mail", "", 1).hex()}
    assert in_flight(tmp_path / "story.db") == flying
    (doubt,) = doubts(tmp_path / "story.db")
    assert (doubt["run"], doubt["node"], doubt["attempt"]) == ("doubted", "mail", 1)


def test_the_command_prints_each_violation_and_fails(tmp_path, capsys):
    db, effects = tell(tmp_path / "story.db")
    log, runs = tmp_path / "effects.jsonl", tmp_path / "acknowledged"
    log.write_text("".join(f"{json.dumps(effect)}\n" for effect in effects) + '{"torn')
    runs.write_text('ended\n{"run":"flying","sequence":4}\n')
    asked = [str(tmp_path / "story.db"), "--effects", str(log), "--acknowledged", str(runs)]
    asked += ["--running", "--complete", "--applied", "applied"]
    assert main(asked) == 0
    a_mutating_effect_happens_twice(db, effects)
    log.write_text("".join(f"{json.dumps(effect)}\n" for effect in effects))
    assert main(asked) == 1
    assert "effect-repeated: doubted mail#1" in capsys.readouterr().out
    db.close()


@pytest.mark.parametrize("content", [None, b"this is no database" * 100])
def test_a_file_that_cannot_be_read_is_not_judged(tmp_path, content):
    if content is not None:
        (tmp_path / "x.db").write_bytes(content)
    assert main([str(tmp_path / "x.db")]) == 2
    assert (tmp_path / "x.db").exists() == (content is not None)


def test_an_unfinished_line_in_the_middle_of_the_log_is_not_passed_over(tmp_path):
    (tmp_path / "log").write_text('{"torn\n{"identity":"00"}\n')
    with pytest.raises(ValueError, match="Unterminated"):
        outside.read(tmp_path / "log")


@pytest.mark.slow
def test_what_a_killed_writer_left_in_the_log_is_read_and_nothing_is_written(tmp_path):
    """A killed writer leaves its newest commits beside the file; they count."""
    tell(tmp_path / "story.db")[0].close()
    script = (
        "import os, signal, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('PRAGMA journal_mode = WAL')\n"
        "db.execute('UPDATE tally_run SET consumed = 77 WHERE run_no = 1')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "story.db"], check=False)
    files = [tmp_path / f"story.db{suffix}" for suffix in ("", "-wal")]
    before = [file.read_bytes() for file in files]
    found = check(tmp_path / "story.db", final=False)
    assert [(violation.code, violation.where) for violation in found] == [("run-row", "consumed")]
    assert [file.read_bytes() for file in files] == before


def test_the_checker_shares_no_code_with_what_it_judges():
    allowed = set(sys.stdlib_module_names) | {"tests", "pytest"}
    for file in HERE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            match node:
                case ast.Import(names=names):
                    roots = {alias.name for alias in names}
                case ast.ImportFrom(module=str(module)):
                    roots = {module}
                case _:
                    continue
            for name in roots:
                assert name.split(".")[0] in allowed, f"{file.name} imports {name}"
                assert not name.startswith("tests.") or name.startswith("tests.checker")
