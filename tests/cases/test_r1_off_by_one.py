"""R1: `max_attempts: N` is N calls that may fail, the first included; crashes are counted apart."""

import pytest

import tallystick as ts
from tallystick.core.compiler import compile_source
from tallystick.core.diagnostics import SourceRefused
from tests.cases.field import World, definition

pytestmark = [pytest.mark.case("R1")]


def flow(task: str, retry: str | None, how: str = "error", more: str = "") -> str:
    policy = "" if retry is None else f", retry: {{{retry}}}"
    return f"""
        tally: 1
        workflow: r1
        steps:
          - {{id: a, call: "TASKS:{task}", with: {{how: {how}}}{policy}{more}}}
        """


@pytest.mark.slow
@pytest.mark.invariant("R1", "R3", "R9", "R10")
@pytest.mark.parametrize("task", ["look_and_fail", "look_and_fail_in_thread", "charge_and_fail"])
@pytest.mark.parametrize(
    ("retry", "calls"),
    [
        (None, 3),  # the decorator's
        ("backoff: 1ms", 3),
        ("max_attempts: 1", 1),
        ("max_attempts: 2, backoff: 1ms", 2),
        ("max_attempts: 3, backoff: 0s", 3),
        ("max_attempts: 5, backoff: 1ms", 5),
        ("max_attempts: 5, backoff: 1ms, interruptions_max: 0", 5),
        ("max_attempts: 5, backoff: 1ms, on: [unavailable]", 1),
    ],
)
async def test_as_many_calls_as_it_says(tmp_path, monkeypatch, task, retry, calls):
    world = World(tmp_path)
    monkeypatch.setenv("TALLY_EFFECT_LOG", str(world.effect_log))
    retry = "backoff: 1ms" if retry is None else retry
    async with ts.open(world.store, engine=True) as tally:
        run = await tally.start(definition(flow(task, retry)))
        with pytest.raises(ts.RunFailed) as failed:
            await run.result()
    assert failed.value.facts["failure"]["kind"] == "error"
    numbers = [(line["attempt"], line["dispatch"]) for line in world.effects()]
    keys = {line["identity"] for line in world.effects()}
    if task == "charge_and_fail":
        assert numbers == [(1, n) for n in range(1, calls + 1)]
        assert len(keys) == 1, "the receiver always sees one key"
    else:
        assert numbers == [(n, 1) for n in range(1, calls + 1)]
        assert len(keys) == calls
    assert not world.judged(complete=False)


@pytest.mark.slow
@pytest.mark.invariant("R3", "R9")
@pytest.mark.parametrize(
    ("task", "how", "policy", "more", "prepared", "kind"),
    [
        (
            "look_and_fail",
            "timeout",
            "max_attempts: 2, backoff: 1ms",
            ", timeout: 20ms",
            2,
            "timeout",
        ),
        ("send_and_fail", "refused", "max_attempts: 3, backoff: 1ms", "", 3, "unavailable"),
        ("look_and_fail", "refused", "max_attempts: 2, backoff: 1ms", "", 2, "unavailable"),
        ("send_and_fail", "error", "max_attempts: 3, backoff: 1ms", "", 1, "error"),
        ("look_and_fail", "unknown", "backoff: 1ms, interruptions_max: 2", "", 1, "exhausted"),
    ],
)
async def test_whatever_failed_it_is_counted_once(
    tmp_path, monkeypatch, task, how, policy, more, prepared, kind
):
    world = World(tmp_path)
    monkeypatch.setenv("TALLY_EFFECT_LOG", str(world.effect_log))
    async with ts.open(world.store, engine=True) as tally:
        run = await tally.start(definition(flow(task, policy, how, more)))
        with pytest.raises(ts.RunFailed) as failed:
            await run.result()
        kinds = [event.kind async for event in tally.history(run.id)]
    assert failed.value.facts["failure"]["kind"] == kind
    assert kinds.count("AttemptPrepared") == prepared
    if how == "unknown":
        assert [line["dispatch"] for line in world.effects()] == [1, 2, 3]
    assert not world.judged(complete=False)


@pytest.mark.slow
@pytest.mark.invariant("R3", "R9", "R13", "C8")
@pytest.mark.parametrize(
    ("task", "deaths", "calls", "status", "kind"),
    [
        # One attempt, cut short by two deaths, still has its one failure left.
        ("look_and_fail", 2, [(1, 1), (1, 2), (1, 3)], "failed", "error"),
        # A step that kills its engine does not do so for ever.
        ("look_and_fail", 3, [(1, 1), (1, 2), (1, 3)], "failed", "exhausted"),
        ("charge_and_fail", 3, [(1, 1), (1, 2), (1, 3)], "in_doubt", None),
    ],
)
def test_a_call_cut_short_by_a_crash_is_an_interruption(
    tmp_path, task, deaths, calls, status, kind
):
    world = World(tmp_path)
    source = flow(task, "max_attempts: 1, backoff: 1ms, interruptions_max: 2")
    fault = {"TALLY_TESTING": "1", "TALLY_FAULT": "driver.report:1:kill"}
    for _ in range(deaths):
        with world.life(source, 0, environment=fault) as life:
            life.last_words(status=-9)
    (run,) = world.run(source, 0)["runs"].values()
    assert [(line["attempt"], line["dispatch"]) for line in world.effects()] == calls
    assert run["status"] == status
    if kind is None:
        assert [doubt["reason"] for doubt in run["doubts"]] == ["exhausted"]
    else:
        assert run["failure"]["kind"] == kind
    assert not world.judged(complete=False)


@pytest.mark.parametrize(
    "number", ["0", "-1", '"3"', "null", "2.0", "true", "1e3", "[3]", "~", "3s", "9" * 30]
)
@pytest.mark.parametrize("where", ["step", "defaults"])
def test_what_is_no_number_of_attempts_is_refused(number, where):
    policy = f"retry: {{max_attempts: {number}}}"
    source = (
        "tally: 1\nworkflow: r1\n"
        + (f"defaults: {{{policy}}}\n" if where == "defaults" else "")
        + "steps:\n  - id: a\n    call: m:f\n    effect: read_only\n"
        + (f"    {policy}\n" if where == "step" else "")
    )
    with pytest.raises(SourceRefused) as refused:
        compile_source(source.encode(), "r1.yaml")
    (problem,) = refused.value.diagnostics
    assert problem.code in {"out-of-range", "wrong-type"}
    assert "max_attempts" in problem.message
