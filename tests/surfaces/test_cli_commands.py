"""Each command asks the client for one thing, prints it, and says by its code what it was."""

import io
import json
import os
import signal
import sys

import pytest

from tallystick import errors
from tests.surfaces.fake_client import (
    AT,
    RUN,
    FakeOpener,
    FakeTally,
    document,
    doubt,
    doubtful,
    event,
    line,
    step,
)

PROBLEM = {
    "file": "a.yaml",
    "line": 3,
    "column": 7,
    "code": "yaml-tag",
    "message": "a tag; plain YAML only",
    "remedy": "remove it",
}
WHOLE = {
    "file": "a\x1b.yaml",
    "line": 0,
    "column": 0,
    "code": "source-encoding",
    "message": "not UTF-8\x1b[2J",
    "remedy": None,
}
PROBLEMS = errors.InvalidRequest(
    "a.yaml has 2 problems", code="definition-invalid", facts={"problems": [PROBLEM, WHOLE]}
)
FAILED = document(
    status="failed",
    output=None,
    failure={"kind": "error", "message": "no\nstock \x1b[31m", "step": "charge"},
)


# ---------------------------------------------------------------------------------------- run


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (document(), 0),
        (FAILED, 1),
        (document(status="cancelled", output=None), 1),
        (doubtful(), 3),
        (document(status="waiting", reason="capacity", person=True, ended_at=None), 3),
    ],
    ids=lambda x: x["status"] if isinstance(x, dict) else "",
)
@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_a_watched_run_says_by_its_exit_code_how_it_stands(tally, run, code, json_flag):
    answer = tally("run", "a.yaml", *json_flag, settles=[run])
    assert answer.code == code
    assert answer.opener.opened == [(None, "own")]
    if json_flag:
        assert answer.document == run


def test_a_run_is_started_as_typed(tally):
    answer = tally(
        "run", "a.yaml", "--input", "n=1", "--input", "t=x", "--key", "k", "--root", "src",
        "--db", "my.db",
    )  # fmt: skip
    assert answer.asked("start") == {
        "file": "a.yaml",
        "value": {"n": 1, "t": "x"},
        "key": "k",
        "root": "src",
    }
    assert answer.opener.opened == [("my.db", "own")]


def test_the_result_goes_to_stdout_and_everything_else_to_stderr(tally):
    events = [event("RunAdmitted"), event("AttemptPrepared", 2, step="charge", attempt=1)]
    answer = tally("run", "a.yaml", events=events, created=True, settles=[document()])
    assert answer.out == f'{RUN}  orders  succeeded\n  output    {{"total":12.5}}\n'
    assert answer.err.splitlines() == [
        "created .tally/tally.db",
        f"run {RUN}",
        "2025-03-01 12:00:00.251Z admitted",
        "2025-03-01 12:00:00.252Z charge attempt 1 begins",
    ]


def test_as_json_every_line_on_stderr_is_json(tally):
    answer = tally("run", "a.yaml", "--json", events=[event("RunAdmitted")], created=True)
    notice, run, told = answer.said
    assert notice["notice"] == "database-created"
    assert notice["path"] == ".tally/tally.db"
    assert run["run"] == RUN
    assert told == {"event": event("RunAdmitted")}


def test_without_a_terminal_a_doubt_ends_the_watch_with_the_command_that_decides_it(tally):
    answer = tally("run", "a.yaml", "--db", "my db", settles=[doubtful()])
    assert answer.code == 3
    resolve = f"tally resolve --db 'my db' {RUN} invoice --outcome"
    assert f"{resolve} succeeded --output JSON\n" in answer.out
    assert f"{resolve} never_happened\n" in answer.out
    assert not [call for call in answer.calls if call[0] == "resolve"]


def test_a_doubt_that_something_else_still_moves_beside_is_waited_for(tally):
    answer = tally("run", "a.yaml", settles=[document()], events=[event("AttemptDoubted")])
    assert answer.code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_in_order_and_says_how_to_carry_on(tally, monkeypatch, number):
    left = []
    monkeypatch.setattr(
        "tallystick.surfaces.cli.stopping.Stopping.leave", lambda _, c: left.append(c)
    )
    fake = Signalled(number=number, settles=[None], events=[event("RunAdmitted")])
    answer = tally("run", "a.yaml", opener=FakeOpener(fake))
    assert answer.code == 128 + number
    assert left == [128 + number]
    assert answer.asked("stop") == {"grace_ms": 10_000}
    assert f"run {RUN} is kept; to carry on: tally engine --until-idle" in answer.err
    assert answer.out == ""


class Signalled(FakeTally):
    """Sends this process a signal once it is watched."""

    def __init__(self, *, number, **rest):
        super().__init__(**rest)
        self.number = number

    async def follow(self, run, *, after):
        async for told in super().follow(run, after=after):
            yield told
            os.kill(os.getpid(), self.number)

    async def news(self, kinds, until):
        async for told in super().news(kinds, until):
            yield told
            os.kill(os.getpid(), self.number)


# ------------------------------------------------------------------------------------- engine


@pytest.mark.parametrize(("person", "code"), [([], 0), ([RUN], 3)])
def test_an_idle_engine_ends_and_says_who_waits_for_a_person(tally, person, code):
    idle = {"statuses": {"succeeded": 2, "in_doubt": len(person)}, "person": person}
    answer = tally(
        "engine", "--until-idle", idles=idle, events=[event("RunEnded", status="failed")]
    )
    assert answer.code == code
    assert answer.out.startswith(f"idle: {len(person)} in_doubt, 2 succeeded\n")
    assert (f"tally show {RUN}" in answer.out) == bool(person)
    assert answer.opener.opened == [(None, "engine")]
    assert f"{RUN} failed" in answer.err


def test_an_engine_is_stopped_by_a_signal(tally, monkeypatch):
    monkeypatch.setattr("tallystick.surfaces.cli.stopping.Stopping.leave", lambda *_: None)
    fake = Signalled(number=signal.SIGTERM, events=[event("RunAdmitted")])
    answer = tally("engine", "--json", opener=FakeOpener(fake))
    assert answer.code == 143
    assert [said.get("notice") for said in answer.said][-2:] == ["stopping", "stopped"]


def test_an_engine_that_fails_says_why(tally):
    broken = errors.StoreUnavailable("fsync failed", code="store-broken")
    answer = tally("engine", raises={"stopped": broken})
    assert answer.code == 5
    assert "fsync failed" in answer.err


# ----------------------------------------------------------------------------- list, show, history


def test_a_list_is_filtered_by_the_client(tally):
    answer = tally(
        "list", "--status", "failed", "--status", "in_doubt", "--workflow", "w", "--key", "k",
        "--before", "9", "--limit", "3",
    )  # fmt: skip
    assert answer.code == 0
    assert answer.asked("list") == {
        "status": ("failed", "in_doubt"),
        "workflow": "w",
        "key": "k",
        "before": 9,
        "limit": 3,
    }
    assert answer.opener.opened == [(None, "client")]


@pytest.mark.case("P3")
@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_a_poisoned_row_never_breaks_a_list(tally, json_flag):
    poison = line(
        workflow="a\x00b\x1b[2J\u202e",
        key="\ud800\n\n",
        status="\x9b31m",
        reason="\x07",
        admitted_at=10**40,
        ended_at="never",
    )
    answer = tally("list", *json_flag, page={"runs": [line(), poison, line()], "next": 3})
    assert answer.code == 0
    assert all(char.isprintable() or char == "\n" for char in answer.out)
    if json_flag:
        assert answer.document["runs"][1] == poison
    else:
        assert len(answer.out.splitlines()) == 5
        assert answer.out.splitlines()[-1] == "more: tally list --before 3"


def test_big_integers_are_exact(tally):
    run = document(output={"n": 2**53 + 1, "big": 10**400})
    assert tally("show", RUN, "--json", run=run).document["output"] == run["output"]
    assert str(2**53 + 1) in tally("show", RUN, run=run).out


def test_a_beginning_of_an_id_is_enough(tally):
    assert tally("show", RUN[:6]).asked("show") == {"run": RUN}


def test_an_unknown_run_is_refused_with_what_to_type_next(tally):
    for words in (["show", "x"], ["history", "x"], ["resolve", "x", "s", "--outcome", "failed"]):
        answer = tally(*words)
        assert answer.code == 2
        assert answer.err == (
            "tally: no run begins with x\n  check   run (not-found)\n  next    tally list\n"
        )


def test_a_history_is_one_event_a_line(tally):
    events = [event("RunAdmitted", 1, payload={"n": 1}), event("RunEnded", 2, status="succeeded")]
    answer = tally("history", RUN, "--after", "0", events=events)
    assert answer.out.splitlines() == [
        '    1  2025-03-01 12:00:00.251Z admitted  {"n":1}',
        "    2  2025-03-01 12:00:00.252Z succeeded",
    ]
    answer = tally("history", RUN, "--json", events=events)
    assert answer.document == {"run": RUN, "events": events}
    assert len(answer.out.splitlines()) == 4
    assert tally("history", RUN, "--json").document == {"run": RUN, "events": []}


# ------------------------------------------------------------------------------------- resolve


def test_a_decision_is_passed_on_exactly(tally):
    answer = tally(
        "resolve", RUN, "invoice", "--outcome", "succeeded", "--output", '{"b":1, "a":2}',
        "--reason", "it is in the mail log", run=document(status="waiting", reason="start",
        ended_at=None, output=None),
    )  # fmt: skip
    assert answer.code == 0
    assert answer.asked("resolve") == {
        "run": RUN,
        "step": "invoice",
        "outcome": "succeeded",
        "output": b'{"a":2,"b":1}',
        "reason": "it is in the mail log",
    }
    assert "tally engine --until-idle" in answer.out


def test_a_wrong_decision_does_not_reach_the_client(tally):
    for words in (["--outcome", "done"], ["--outcome", "succeeded"], []):
        answer = tally("resolve", RUN, "invoice", *words)
        assert answer.code == 2
        assert answer.calls == []


# ------------------------------------------------------------------------------------ validate


def valid(**changes):
    return {
        "file": "a.yaml",
        "valid": True,
        "workflow": "orders",
        "digest": "ab" * 32,
        "steps": 2,
        "problems": [],
        "warnings": [],
    } | changes


def test_validate_prints_every_problem_with_its_place_and_remedy(tally):
    found = valid(valid=False, workflow=None, digest=None, problems=[PROBLEM, PROBLEM])
    answer = tally("validate", "a.yaml", opener=FakeOpener(valid=found))
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.splitlines()[:2] == [
        "a.yaml:3:7: yaml-tag: a tag; plain YAML only",
        "    remove it",
    ]
    answer = tally("validate", "a.yaml", "--json", opener=FakeOpener(valid=found))
    assert (answer.code, answer.document) == (2, found)


def test_validate_imports_code_only_when_told_to(tally):
    for words, told in (((), False), (("--import",), True)):
        answer = tally(
            "validate", "a.yaml", *words, opener=FakeOpener(valid=valid(warnings=[PROBLEM]))
        )
        assert answer.code == 0
        assert answer.asked("validate")["import_code"] is told
        assert "a.yaml: valid: orders, 2 steps, digest abab" in answer.out
        assert "remove it" in answer.out


# ------------------------------------------------------------------------------------ refusals


REFUSALS = [
    (errors.InvalidRequest("x"), 2),
    (errors.Conflict("x", facts={"input": "differs"}), 2),
    (errors.OwnerElsewhere("held by process 17", check="engine-lock", facts={"pid": 17}), 4),
    (errors.AuthorityLost("x"), 4),
    (errors.StoreUnavailable("x"), 5),
    (errors.CapacityUnavailable("disk full", which="disk", transient=True), 5),
    (errors.MaintenanceRequired("x"), 5),
    (errors.UnsupportedSchema("x"), 5),
    (errors.NotReady("x"), 2),
    (OSError(28, "No space left on device", "a\x1b"), 5),
    (PROBLEMS, 2),
    (RuntimeError("bug\x1b[2J"), 70),
]


@pytest.mark.parametrize(("error", "code"), REFUSALS, ids=lambda x: type(x).__name__)
def test_a_refusal_has_its_exit_code_and_goes_to_stderr(tally, error, code):
    answer = tally("run", "a.yaml", raises={"open": error})
    assert answer.code == code
    assert answer.out == ""
    assert "tally: " in answer.err
    assert all(char.isprintable() or char == "\n" for char in answer.err)
    answer = tally("run", "a.yaml", "--json", raises={"start": error})
    assert answer.code == code
    refusal = answer.said[-1]["error"]
    assert {"code", "message", "check", "facts", "retryable", "next_step"} <= set(refusal)


def test_a_refusal_says_what_was_seen_and_what_to_do(tally):
    error = errors.OwnerElsewhere(
        "another process is the engine: process 17",
        check="engine-lock",
        facts={"pid": 17, "command": "evil\x1b]0;x\x07"},
        next_step="wait for it to end, or stop it with SIGTERM",
    )
    assert tally("engine", raises={"open": error}).err.splitlines() == [
        "tally: another process is the engine: process 17",
        "  check   engine-lock (owner-elsewhere)",
        "  pid     17",
        "  command evil\\x1b]0;x\\x07",
        "  next    wait for it to end, or stop it with SIGTERM",
    ]


def test_all_problems_of_a_source_are_told_at_once(tally):
    answer = tally("run", "a.yaml", raises={"start": PROBLEMS})
    assert answer.err.splitlines() == [
        "a.yaml:3:7: yaml-tag: a tag; plain YAML only",
        "    remove it",
        "a\\x1b.yaml: source-encoding: not UTF-8\\x1b[2J",
        "tally: 2 problems in the definition",
        "  check   definition (definition-invalid)",
        "  next    repair it, then: tally validate a.yaml",
    ]
    answer = tally("run", "a.yaml", "--json", raises={"start": PROBLEMS})
    assert answer.said[-1]["error"]["problems"] == [PROBLEM, WHOLE]


@pytest.mark.parametrize(
    "words", [["nope"], ["run"], ["list", "--limit", "x"], ["show", "a", "b"], ["list", "--nope"]]
)
def test_a_command_line_that_says_nothing_sensible_is_an_invalid_request(tally, words):
    answer = tally(*words)
    assert answer.code == 2
    assert "--help" in answer.err
    answer = tally(*words, "--json")
    assert answer.code == 2
    assert answer.said[0]["error"]["code"] == "usage"


def test_no_word_at_all_prints_the_help(tally):
    assert "Commands:" in tally().out
    assert tally("--help").code == 0


def test_the_reader_may_go_away(tally, monkeypatch):
    class Gone(io.TextIOWrapper):
        def write(self, _text):
            raise BrokenPipeError

    moved = []
    monkeypatch.setattr(os, "dup2", lambda *a: moved.append(a))
    monkeypatch.setattr(sys, "stdout", Gone(io.BytesIO()))
    assert tally("list").code == 141
    assert moved


def test_an_encoding_that_holds_less_gets_escapes(tally, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    tally("show", RUN, run=document(workflow="Größe"))
    tally("show", RUN, "--json", run=document(workflow="Größe"))
    sys.stdout.flush()
    text = written.getvalue().decode("ascii")
    assert r"Gr\xf6\xdfe" in text
    assert json.loads(text[text.index("{\n") :])["workflow"] == "Größe"


# --------------------------------------------------------------------------- database, version


def test_the_database_is_the_one_typed_else_the_one_of_the_environment(tally, monkeypatch):
    monkeypatch.setenv("TALLY_DATABASE_URL", "env.db")
    assert tally("list").opener.opened == [("env.db", "client")]
    assert tally("list", "--db", "typed.db").opener.opened == [("typed.db", "client")]
    monkeypatch.setenv("TALLY_DATABASE_URL", "")
    assert tally("list").opener.opened == [(None, "client")]


@pytest.mark.parametrize("words", [["version"], ["--version"], ["version", "--json"]])
def test_the_version_needs_no_database(tally, words):
    answer = tally(*words)
    assert answer.code == 0
    assert answer.opener.opened == []
    if "--json" in words:
        assert set(answer.document) == {"version", "python"}


# ------------------------------------------------------------------------------ golden pages


BUSY = document(
    status="in_doubt",
    person=True,
    ended_at=None,
    output=None,
    owner="e_01",
    steps=[
        step("charge"),
        step("invoice", status="in_doubt", dispatch=2),
        step("notify", status="retry", effect="idempotent", due_at=AT + 5_000),
        step("each[17].publish", status="failed", failure={"kind": "error", "message": "no\nway"}),
    ],
    doubts=[doubt(dispatch=2)],
)
WIDE = """\
r_01ARZ3NDEKTSV4RRFFQ69G5FAV  orders  in_doubt
  key       order-17
  admitted  2025-03-01 12:00:00.250Z
  owner     e_01, generation 1
  input     {"order":17}

STEP              STATUS     ATTEMPT        EFFECT
charge            succeeded  1              mutating
invoice           in_doubt   1, dispatch 2  mutating
notify            retry      1              idempotent  next at 2025-03-01 12:00:05.250Z
each[17].publish  failed     1              mutating    error: no\\nway

In doubt: invoice, attempt 1 may have happened, and nobody here can prove its outcome.
  because   its engine ended while it was in flight
  effect    mutating
  key       cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd
  since     2025-03-01 12:00:00.750Z
  happened  tally resolve r_01ARZ3NDEKTSV4RRFFQ69G5FAV invoice --outcome succeeded --output JSON
  did not   tally resolve r_01ARZ3NDEKTSV4RRFFQ69G5FAV invoice --outcome never_happened
"""
NARROW_STEPS = """\
STEP             STATUS
charge           succeeded
invoice          in_doubt
notify           retry      next at 2…
each[17].publi…  failed     error: no…
"""


def test_a_page_without_a_terminal_is_cut_nowhere(tally):
    assert tally("show", RUN, run=BUSY).out == WIDE


def test_a_narrow_page_gives_up_what_matters_least(tally, monkeypatch):
    monkeypatch.setenv("COLUMNS", "38")
    steps = tally("show", RUN, run=BUSY).out.split("\n\n")[1]
    assert [row.rstrip() for row in steps.splitlines()] == [
        row.rstrip() for row in NARROW_STEPS.splitlines()
    ]


@pytest.mark.parametrize(
    ("columns", "head"),
    [
        ("120", "RUN STATUS WORKFLOW KEY ADMITTED ENDED"),
        ("90", "RUN STATUS WORKFLOW KEY ADMITTED"),
        ("60", "RUN STATUS WORKFLOW KEY"),
        ("40", "RUN STATUS"),
        ("10", "RUN STATUS"),
    ],
)
def test_a_list_never_cuts_an_id(tally, monkeypatch, columns, head):
    monkeypatch.setenv("COLUMNS", columns)
    first, row = tally("list").out.splitlines()
    assert first.split() == head.split()
    assert row.startswith(RUN)


def test_a_run_of_many_steps_shows_first_what_needs_attention(tally):
    steps = [step(f"s{n}") for n in range(500)] + [step("bad", status="failed")]
    page = tally("show", RUN, run=document(steps=steps)).out
    assert "bad " in page
    assert "… 301 more steps; --json shows all" in page
