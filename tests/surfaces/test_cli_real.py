"""The command line over the real client: real processes, real SQLite, kills and signals."""

import json
import os
import pty
import re
import resource
import select
import signal
import sqlite3
import subprocess
import time

import pytest

import tallystick as ts
from tests import project
from tests.surfaces.real import Done, Shop

pytestmark = pytest.mark.slow
BEGUN = "attempt 1 begins"


@pytest.fixture
def shop(tmp_path):
    """A folder of a user's; no process outlives it."""
    shop = Shop(tmp_path)
    yield shop
    shop.close()


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """A folder with one run that succeeded; tests leave it as it is."""
    shop = Shop(tmp_path_factory.mktemp("used"))
    assert shop.tally("run", shop.write("a.yaml", "echo"), "-i", "value=1").code == 0
    yield shop
    shop.close()


def begun(shop, *words):
    """A command whose last step is under way."""
    running = shop.start(*words)
    return running.until(f"s0 {BEGUN}")


# ------------------------------------------------------------------------------- how a run ends


@pytest.mark.parametrize(
    ("calls", "code", "page"),
    [
        (["echo", "echo"], 0, r"w  succeeded\n  output    7\n"),
        (["echo", "broken"], 1, r"w  failed\n  failure   error in s1: ValueError: no such thing\n"),
        (
            ["unsure"],
            3,
            r"w  in_doubt\n\nIn doubt: s0, attempt 1 .*\n  because   .*the line went dead",
        ),
    ],
)
def test_the_exit_code_says_how_a_run_ended(shop, calls, code, page):
    done = shop.tally("run", shop.write("a.yaml", *calls), "-i", "value=7")
    assert done.code == code, done
    assert re.search(page, done.out), done
    assert "printed by a task" not in done.out


@pytest.mark.parametrize(("calls", "code"), [(["echo"], 0), (["broken"], 1), (["unsure"], 3)])
def test_as_json_both_streams_are_json(shop, calls, code):
    done = shop.tally("run", shop.write("a.yaml", *calls), "-i", "value=7", "--json")
    assert done.code == code
    assert done.document["input"] == {"value": 7}
    steps = done.document["steps"]
    assert [step["step"] for step in steps] == ["s0"]
    assert steps[0]["effect"] in ("read_only", "mutating")
    spoken = [line for line in done.err.splitlines() if line != "printed by a task"]
    assert all(json.loads(line) for line in spoken)


@pytest.mark.case("K1")
def test_the_same_key_is_the_same_run(shop):
    (shop.folder / "calm").touch()
    words = ("run", shop.write("a.yaml", "hang"), "-i", "value=7", "--key", "k")
    first, second = shop.tally(*words), shop.tally(*words, "--json")
    assert (first.code, second.code) == (0, 0)
    assert shop.only_run() in first.err
    assert second.document["output"] == 7
    assert second.said[0]["created"] is False
    assert len(shop.effects()) == 1


def test_another_request_under_a_key_is_refused_with_what_differs(shop):
    words = ("run", shop.write("a.yaml", "echo"), "--key", "k", "-i")
    assert shop.tally(*words, "value=7").code == 0
    done = shop.tally(*words, "value=8", "--json")
    assert done.code == 2
    assert done.refusal["code"] == "key-taken"
    assert done.refusal["facts"]["differs"] == ["input"]
    assert "another input" in shop.tally(*words, "value=8").err


# ------------------------------------------------------------------------------- after a kill


@pytest.mark.parametrize("carry_on", ["run", "engine"])
def test_after_a_kill_a_run_goes_on_under_the_same_identity(shop, carry_on):
    words = ("run", shop.write("a.yaml", "hang_same_key", "echo"), "-i", "value=7", "--key", "k")
    begun(shop, *words).kill()
    show = shop.tally("show", shop.only_run()[:4])
    assert "waiting(owner)" in show.out
    assert "waits     for an engine: tally engine --until-idle" in show.out
    (shop.folder / "calm").touch()
    done = shop.tally(*(words if carry_on == "run" else ("engine", "--until-idle")))
    assert done.code == 0, done
    assert "taken over from" in done.err
    assert shop.tally(*words).code == 0
    (_, first), (_, second) = shop.effects()
    assert first == second


def test_after_a_kill_what_may_have_happened_is_decided_by_a_person(shop):
    words = ("run", shop.write("a.yaml", "hang", "echo"), "-i", "value=7", "--key", "k")
    begun(shop, *words).kill()
    done = shop.tally(*words)
    assert done.code == 3, done
    assert "its engine ended while it was under way" in done.out
    (decide,) = re.findall(r"happened  (tally resolve .*) JSON", done.out)
    assert shop.tally(*decide.split()[1:], '"x"', "--reason", "seen").code == 0
    done = shop.tally(*words, "--json")
    assert (done.code, done.document["output"]) == (0, "x")
    assert len(shop.effects()) == 1
    history = shop.tally("history", shop.only_run(), "--json").document["events"]
    (decided,) = [event for event in history if event["kind"] == "DoubtResolved"]
    assert (decided["decision"], decided["payload"]) == ("succeeded", "seen")
    assert "uid" in decided["actor"]


def test_only_its_own_run_is_carried_on(shop):
    """Another run whose engine was killed stays exactly as it is."""
    begun(shop, "run", shop.write("a.yaml", "hang_same_key"), "-i", "value=7").kill()
    other, before = shop.only_run(), shop.tally("history", shop.only_run()).out
    (shop.folder / "calm").touch()
    assert shop.tally("run", shop.write("b.yaml", "echo"), "-i", "value=8").code == 0
    assert shop.tally("history", other).out == before
    assert shop.tally("engine", "--until-idle").code == 0
    assert shop.tally("show", other, "--json").document["status"] == "succeeded"


def test_an_idle_engine_counts_and_names_who_waits_for_a_person(shop):
    shop.tally("run", shop.write("a.yaml", "echo"), "-i", "value=1")
    begun(shop, "run", shop.write("b.yaml", "hang"), "-i", "value=2").kill()
    done = shop.tally("engine", "--until-idle", "--json")
    assert done.code == 3
    (doubted,) = done.document["person"]
    assert done.document == {"statuses": {"succeeded": 1, "in_doubt": 1}, "person": [doubted]}
    kinds = [said["event"]["kind"] for said in done.said if "event" in said]
    assert kinds == ["RunHandedOff", "AttemptDoubted"]
    page = shop.tally("engine", "--until-idle").out
    assert page == (f"idle: 1 in_doubt, 1 succeeded\n  waits for a person: tally show {doubted}\n")


# ------------------------------------------------------------------------------- two processes


@pytest.mark.parametrize("words", ["run", "engine", "resolve"])
def test_who_comes_second_is_told_who_is_the_engine(shop, words):
    first = begun(shop, "run", shop.write("a.yaml", "hang"), "-i", "value=7")
    commands = {
        "run": ("run", "a.yaml", "-i", "value=8"),
        "engine": ("engine", "--until-idle"),
        "resolve": ("resolve", shop.only_run(), "s0", "--outcome", "failed"),
    }
    done = shop.tally(*commands[words], "--json")
    assert done.code == 4, done
    assert done.refusal["facts"]["pid"] == first.pid
    assert f"process {first.pid}" in shop.tally(*commands[words]).err
    assert len(shop.tally("list", "--json").document["runs"]) == 1


# ------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", ["run", "engine"])
def test_what_ends_within_the_grace_has_ended(shop, number, words):
    os.mkfifo(shop.folder / "gate")
    running = begun(shop, "run", shop.write("a.yaml", "gated", "echo"), "-i", "value=7")
    if words == "engine":
        running.kill()
        run = shop.only_run()
        shop.tally("engine", "--until-idle")
        shop.tally("resolve", run, "s0", "--outcome", "never_happened")
        running = shop.start("engine")
    with (shop.folder / "gate").open("w"):  # opens once the function reads from it
        running.signal(number).until("stopping")
    done = running.ended()
    assert done.code == 128 + number
    assert "to carry on: tally engine --until-idle" in done.err
    run = shop.tally("show", shop.only_run(), "--json").document
    assert [step["status"] for step in run["steps"]] == ["succeeded", "ready"]
    assert (run["status"], run["owner"]) == ("waiting", None)
    assert ends(shop)[-1] == "drained"
    assert shop.tally("engine", "--until-idle").code == 0


def test_a_function_that_goes_on_is_left_within_a_second_of_the_grace(shop):
    os.mkfifo(shop.folder / "gate")
    running = begun(shop, "run", shop.write("a.yaml", "gated"), "-i", "value=7")
    asked = time.monotonic()
    done = running.signal(signal.SIGTERM).ended()
    assert done.code == 143
    assert 9.5 < time.monotonic() - asked < 11.5
    (left,) = ends(shop)
    assert len(json.loads(left)) == 1, "the record names what may still run"
    assert shop.tally("show", shop.only_run(), "--json").document["status"] == "in_doubt"


def test_a_second_signal_ends_at_once_and_loses_nothing(shop):
    running = begun(shop, "run", shop.write("a.yaml", "hang"), "-i", "value=7", "--key", "k")
    running.signal(signal.SIGINT).until("stopping").signal(signal.SIGINT)
    assert running.ended().code == -signal.SIGINT
    assert shop.tally("run", "a.yaml", "-i", "value=7", "--key", "k").code == 3


def ends(shop):
    """How each engine said that it ended, oldest first."""
    return [end for (end,) in shop.rows("SELECT ended FROM tally_engine ORDER BY started_at")]


# ------------------------------------------------------------------------------- at a terminal


class Terminal:
    """A command at a terminal."""

    def __init__(self, shop, *words):
        self.master, slave = pty.openpty()
        environ = {"TERM": "xterm", "COLUMNS": "80"}
        self.process = shop.process(
            *words, env=environ, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.seen = ""

    def until(self, text):
        while text not in self.seen:
            assert self._read(), f"{text!r} never came:\n{self.seen}"
        self.seen = self.seen.partition(text)[2]

    def type(self, text):
        os.write(self.master, text.encode())

    def ended(self):
        while self._read():
            pass
        os.close(self.master)
        return self.process.wait(20)

    def _read(self):
        ready, _, _ = select.select([self.master], [], [], 20)
        try:
            chunk = os.read(self.master, 65_536) if ready else b""
        except OSError:
            chunk = b""
        self.seen += chunk.decode("utf-8", "replace")
        return bool(chunk)


def test_a_doubt_is_asked_at_once_and_the_run_goes_on(shop):
    terminal = Terminal(shop, "run", shop.write("a.yaml", "unsure", "echo"), "-i", "value=7")
    terminal.until("In doubt: s0, attempt 1")
    terminal.until("[d/n/l] ")
    terminal.type("d\n")
    terminal.until("its output")
    terminal.type('"done"\n')
    terminal.until("succeeded")
    assert terminal.ended() == 0
    run = shop.tally("show", shop.only_run(), "--json").document
    assert (run["status"], run["output"]) == ("succeeded", "done")


def test_not_done_is_tried_again_and_can_be_left(shop):
    terminal = Terminal(shop, "run", shop.write("a.yaml", "unsure"), "-i", "value=7")
    terminal.until("[d/n/l] ")
    terminal.type("n\n")
    terminal.until("In doubt: s0, attempt 2")
    terminal.until("[d/n/l] ")
    terminal.type("l\n")
    assert terminal.ended() == 3
    assert shop.tally("list", "--status", "in_doubt", "--json").document["runs"] != []


# ------------------------------------------------------------------------------- what is wrong


@pytest.mark.case("K3")
def test_validate_prints_every_problem_and_writes_nothing(shop):
    (shop.folder / "bad.yaml").write_text(
        "tally: 1\nworkflow: w\nnonsense: 1\nsteps:\n  - id: a\n    call: x\n"
        "  - id: a\n    call: work:echo\n    retry: {max_attempts: 0}\n    needs: [b]\n"
    )
    before = sorted(shop.folder.rglob("*"))
    done = shop.tally("validate", "bad.yaml")
    assert done.code == 2
    codes = re.findall(r"^bad\.yaml:\d+:\d+: ([a-z-]+):", done.err, re.MULTILINE)
    assert set(codes) >= {"key-unknown", "call-invalid", "step-id-repeated", "needs-unknown"}
    found = shop.tally("validate", "bad.yaml", "--json")
    assert [problem["code"] for problem in found.document["problems"]] == codes
    assert sorted(shop.folder.rglob("*")) == before
    run = shop.tally("run", "bad.yaml", "--json")
    assert run.code == 2
    assert run.refusal["problems"] == found.document["problems"]


@pytest.mark.parametrize(
    ("step", "code", "message"),
    [
        ("call: work:ecko", "task-missing", "there is no 'ecko'"),
        ("call: wrok:echo", "task-import", "there is no module 'wrok'"),
        ("call: work:echo\n    with: {valve: 1}", "task-arguments", "unknown argument valve"),
        ("call: work:typed", "task-arguments", "argument count is missing"),
        (
            "call: work:typed\n    with: {count: x}",
            "task-arguments",
            "count: expected int, got str",
        ),
    ],
)
def test_only_with_import_is_the_code_looked_at(shop, step, code, message):
    with (shop.folder / "work.py").open("a") as file:
        file.write("\nopen(HERE / 'imported', 'w').close()\n\n\ndef typed(count: int): ...\n")
    (shop.folder / "a.yaml").write_text(f"tally: 1\nworkflow: w\nsteps:\n  - id: a\n    {step}\n")
    assert shop.tally("validate", "a.yaml").code == 0
    assert not (shop.folder / "imported").exists()
    done = shop.tally("validate", "a.yaml", "--import", "--json")
    assert done.code == 2
    (problem,) = done.document["problems"]
    assert (problem["code"], problem["file"]) == (code, "a.yaml")
    assert problem["line"] >= 4
    assert message in problem["message"]
    assert not (shop.folder / ".tally").exists()


def test_validate_warns_where_file_and_decorator_disagree(shop):
    (shop.folder / "a.yaml").write_text(
        "tally: 1\nworkflow: w\nsteps:\n  - id: a\n    call: work:hang\n    effect: read_only\n"
    )
    done = shop.tally("validate", "a.yaml", "--import")
    assert done.code == 0
    assert "a.yaml:6:5: effect-differs: the file says `read_only`" in done.out


@pytest.mark.parametrize(
    "words",
    [("list",), ("show", "r"), ("history", "r"), ("resolve", "r", "s", "--outcome", "failed")],
    ids=lambda words: words[0],
)
def test_a_reader_makes_no_database(shop, words):
    done = shop.tally(*words, "--json")
    assert (done.code, done.refusal["code"]) == (2, "no-database")
    assert "tally run FILE" in done.refusal["next_step"]
    assert sorted(path.name for path in shop.folder.iterdir()) == ["work.py"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "none.yaml"), "definition-unreadable"),
        (("run", "."), "definition-unreadable"),
        (("run", "a.yaml", "--key", ""), "key-invalid"),
        (("list", "--status", "wrong"), "status-unknown"),
        (("show", "zzz"), "run-unknown"),
        (("show", ""), "run-unknown"),
        (("show", "\ud800"), "run-unknown"),
        (("history", "zzz"), "run-unknown"),
        (("resolve", "r", "s1", "--outcome", "failed"), "step-unknown"),
        (("resolve", "r", "s0", "--outcome", "failed"), "conflict"),
        (("frobnicate",), "usage"),
        (("list", "--db", "no/such/folder/a.db"), "no-database"),
        (("list", "--db", "postgresql://x/y"), "database-unknown"),
    ],
    ids=lambda it: " ".join(it).encode("utf-8", "replace").decode() if type(it) is tuple else it,
)
def test_a_wrong_request_is_refused_without_a_trace(used, words, code):
    before = used.rows("SELECT * FROM tally_event")
    done = used.tally(*(word.encode("utf-8", "surrogatepass") for word in words), "--json")
    assert done.code == 2, done
    assert done.refusal["code"] == code
    assert done.out == ""
    assert used.rows("SELECT * FROM tally_event") == before


def test_a_beginning_that_fits_several_runs_names_them(shop):
    for value in (1, 2):
        shop.tally("run", shop.write("a.yaml", "echo"), "-i", f"value={value}")
    done = shop.tally("show", "r_", "--json")
    assert (done.code, done.refusal["code"]) == (2, "run-ambiguous")
    both = sorted(run["run"] for run in shop.tally("list", "--json").document["runs"])
    assert sorted(done.refusal["facts"]["candidates"]) == both
    assert shop.tally("show", both[0]).code == 0


# ------------------------------------------------------------------------------- bad storage


DAMAGES = {
    "no database": lambda file: file.write_bytes(b"this is not a database\n" * 100),
    "too short": lambda file: file.write_bytes(b"SQLite format 3\0"),
    "garbage in the middle": lambda file: spoil(file, 4_096),
    "another program's": lambda file: foreign(file),
    "a changed history": lambda file: forged(file),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_refused_in_a_sentence(shop, how):
    shop.tally("run", shop.write("a.yaml", "echo"), "-i", "value=1")
    run, file = shop.only_run(), shop.folder / ".tally/tally.db"
    DAMAGES[how](file)
    done = shop.tally("history", run)
    assert done.code == 5, done
    assert "Traceback" not in done.err
    assert done.err.startswith("tally: ")


def spoil(file, start):
    content = file.read_bytes()
    file.write_bytes(content[:start] + b"\xa5" * (len(content) - start))


def foreign(file):
    file.unlink()
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()


def forged(file):
    with sqlite3.connect(file) as store:
        for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            store.execute(f"DROP TRIGGER {name}")
    store.close()


def test_a_forged_history_is_noticed_on_the_way(shop):
    """The guards are put back, so that only the chain of hashes can tell."""
    shop.tally("run", shop.write("a.yaml", "echo"), "-i", "value=1")
    run, file = shop.only_run(), shop.folder / ".tally/tally.db"
    with sqlite3.connect(file) as store:
        found = (
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name LIKE '%event%'"
        )
        guards = store.execute(found).fetchall()
        for name, _ in guards:
            store.execute(f"DROP TRIGGER {name}")
        changed = (
            "UPDATE tally_event SET envelope = replace(envelope, '\"attempt\":1', '\"attempt\":2')"
        )
        assert store.execute(changed).rowcount
        for _, guard in guards:
            store.execute(guard)
    store.close()
    done = shop.tally("history", run, "--json")
    assert done.code == 5, done
    assert done.refusal["code"] == "history-broken"
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(done.out)  # the array is not closed: not all of it is there


def test_a_full_disk_is_told_as_one(shop):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))

    name = shop.write("a.yaml", *["echo"] * 300)
    done = shop.tally("run", name, "-i", "value=1", preexec_fn=small_files)
    assert done.code == 5, done
    assert "Traceback" not in done.err
    assert shop.tally("engine", "--until-idle").code == 0


# ------------------------------------------------------------------------------- large and odd

ODD = "a\x00b\x1b[2J\u202edecived\u2066\u200b\n\r\x9b31m"
MANY = 10_000


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """Ten thousand runs, some of them with what no terminal should be given."""
    shop = Shop(tmp_path_factory.mktemp("crowd"))
    (shop.folder / "a.yaml").write_text(
        "tally: 1\nworkflow: w\nsteps:\n  - id: end\n    succeed: ${{ input }}\n"
    )
    with ts.open_blocking(shop.folder / "many.db", engine=True) as tally:
        do = tally._open.do

        async def admit():
            import asyncio

            inner = tally._tally
            for first in range(0, MANY, 500):
                numbers = range(first, first + 500)
                starts = (inner.start(shop.folder / "a.yaml", of(n), f"key-{n}") for n in numbers)
                await asyncio.gather(*starts)
            await inner.until_idle()

        do(admit())
    yield shop
    shop.close()


def of(number):
    return {"n": number, "odd": ODD if number % 1_000 == 999 else "", "big": 10**30}


def test_a_large_store_is_listed_page_by_page(crowd):
    database, seen, before = ("--db", "many.db"), [], ()
    for _ in range(10):
        done = crowd.tally("list", *database, "--limit", "1000", "--json", *before)
        assert done.code == 0
        seen += [run["number"] for run in done.document["runs"]]
        before = ("--before", str(done.document["next"]))
    assert done.document["next"] is None
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == MANY
    page = crowd.tally("list", *database)
    assert len(page.out.splitlines()) == 52
    assert "more: tally list --db many.db --before" in page.out


def test_what_is_odd_reaches_no_terminal_and_no_parser(crowd):
    database = ("--db", "many.db")
    (found,) = crowd.tally("list", *database, "--key", "key-9999", "--json").document["runs"]
    for command in ("show", "history"):
        page = crowd.tally(command, *database, found["run"])
        assert page.code == 0, page
        assert all(char.isprintable() or char == "\n" for char in page.out)
        assert r"\u202e" in page.out
    run = crowd.tally("show", *database, found["run"], "--json").document
    assert run["output"] == of(9_999)
    events = crowd.tally("history", *database, found["run"], "--json").document["events"]
    assert events[0]["payload"] == of(9_999)


def test_an_engine_over_a_large_store_is_idle_at_once(crowd):
    done = crowd.tally("engine", "--until-idle", "--db", "many.db", "--json")
    assert (done.code, done.document) == (0, {"statuses": {"succeeded": MANY}, "person": []})


# ------------------------------------------------------------------------------- first minute


def test_the_sixty_seconds_of_the_readme(shop, tmp_path):
    """Every block of that section, as it stands: files are written, commands are run."""
    text = (project.ROOT / "README.md").read_text("utf-8")
    section = text.partition("## Sixty seconds\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:`([\w.]+)`:\n\n)?```(\w+)\n(.*?)```", section, re.DOTALL)
    for name, _, body in blocks:
        if name:
            (tmp_path / name).write_text(body)
    commands = [line for _, kind, body in blocks if kind == "sh" for line in body.splitlines()]
    done: dict[str, Done] = {}
    for line in commands:
        run = shop.only_run() if " RUN" in line else ""
        done[line.split()[1]] = in_shell(shop, line.replace(" RUN", f" {run}"))
    assert [done[verb].code for verb in ("run", "list", "history")] == [0, 0, 0], done
    assert "sent A-17:1299:" in done["run"].out
    assert "A-17" in done["list"].out
    assert done["history"].out.splitlines()[-1].endswith('"')
    assert done["resolve"].code == 2  # nothing was killed, so there is nothing to decide
    assert in_shell(shop, commands[0]).code == 0
    assert shop.only_run()
    (program,) = [body for name, kind, body in blocks if kind == "python" and not name]
    (tmp_path / "program.py").write_text(f"{program}\n\nimport asyncio\n\nasyncio.run(main())\n")
    told = subprocess.run(
        [os.sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert told.stdout.startswith("sent A-17:1299:"), told


def in_shell(shop, line):
    """A line of the README, given to a shell that knows the command."""
    from tests.surfaces.real import COMMAND, environment

    known = f"tally() {{ {os.sys.executable} -c '{COMMAND}' \"$@\"; }}; {line}"
    told = subprocess.run(
        ["sh", "-c", known], cwd=shop.folder, env=environment(), capture_output=True, text=True
    )
    return Done(told.returncode, told.stdout, told.stderr)
