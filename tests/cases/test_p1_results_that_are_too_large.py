"""P1: a result over a limit must end its step, once, and not be tried again and again."""

import pytest

import tallystick as ts
from tests.cases.field import World, definition

MEGABYTE = 1_000_000
SLACK = 30 * MEGABYTE
"""What an engine needs for itself, whatever it carries."""
COPIES = 3.2
"""The task's own copy included: it still holds the value that it returns."""

MAKE = """
    tally: 1
    workflow: p1
    input: {type: integer}
    steps:
      - id: make
        call: "TASKS:make"
        with: {size: "${{ input }}"}
        effect: read_only
        retry: {max_attempts: 3, backoff: 1ms}
      - id: after
        call: "TASKS:length"
        with: {x: "${{ steps.make.output }}"}
    output: ${{ steps.after.output }}
    """

pytestmark = [pytest.mark.case("P1"), pytest.mark.slow]


@pytest.mark.parametrize("megabytes", [1.9, 2.1, 50])
def test_a_large_result_is_carried_once_through_the_run(tmp_path, megabytes):
    size, world = int(megabytes * MEGABYTE), World(tmp_path)
    told = world.run(MAKE, size)
    (run,) = told["runs"].values()
    assert (run["status"], run["output"]) == ("succeeded", size)
    assert told["grown"] < COPIES * size + SLACK
    assert world.run(MAKE, size)["runs"].popitem()[1]["output"] == size
    assert [line["step"] for line in world.effects()] == ["make", "after"]
    assert not world.judged()


@pytest.mark.invariant("R5", "S7")
def test_a_result_over_the_limit_fails_its_step_once_and_names_it(tmp_path):
    size, world = 300 * MEGABYTE, World(tmp_path)
    told = world.run(MAKE, size)
    (run,) = told["runs"].values()
    failure = run["failure"]
    assert (run["status"], failure["kind"], failure["step"]) == (
        "failed",
        "output_too_large",
        "make",
    )
    assert failure["detail"] == {"step": "make", "bytes": size + 2, "limit": 64 * 1024 * 1024}
    for named in ("make", str(size + 2), str(64 * 1024 * 1024)):
        assert named in failure["message"]
    assert told["grown"] < COPIES * size
    world.run(MAKE, size)
    assert [line["step"] for line in world.effects()] == ["make"]
    assert not world.judged(complete=False)  # its effect is there, without a success


@pytest.mark.parametrize("megabytes", [1.9, 300])
def test_an_input_over_the_limit_is_refused_and_nothing_is_written(tmp_path, megabytes):
    flow = """
        tally: 1
        workflow: p1
        steps:
          - {id: after, call: "TASKS:give"}
        """
    size, world = int(megabytes * MEGABYTE), World(tmp_path)
    told = world.run(flow, {"of_length": size})
    assert told["refused"]["code"] == "input-too-large"
    assert told["refused"]["facts"] == {"bytes": size + 2, "limit": 1024 * 1024}
    assert not told["refused"]["retryable"]
    assert told["grown"] < COPIES * size + SLACK
    with ts.open_blocking(world.store) as client:
        assert client.list() == []


@pytest.mark.parametrize("megabytes", [2.1, 300])
def test_a_large_error_text_is_cut_and_not_repeated(tmp_path, megabytes):
    flow = """
        tally: 1
        workflow: p1
        input: {type: integer}
        steps:
          - {id: fail, call: "TASKS:fail_at_length", with: {size: "${{ input }}"}}
        """
    size, world = int(megabytes * MEGABYTE), World(tmp_path)
    told = world.run(flow, size)
    (run,) = told["runs"].values()
    assert run["failure"]["kind"] == "error"
    assert len(run["failure"]["message"]) < 5_000
    assert f"({size} characters)" in run["failure"]["message"]
    assert told["grown"] < COPIES * size + SLACK
    assert [line["step"] for line in world.effects()] == ["fail"]
    assert not world.judged(complete=False)


async def test_a_decided_output_over_the_limit_is_refused_and_the_doubt_stays(tmp_path):
    """The other door for a value: what a person says that a step returned."""
    doubtful = """
        tally: 1
        workflow: p1
        steps:
          - {id: send, call: "TASKS:unsure"}
        """
    async with ts.open(tmp_path / "p1.db", engine=True) as tally:
        run = await tally.start(definition(doubtful))
        with pytest.raises(ts.RunInDoubt):
            await run.result()
        for size in (65 * MEGABYTE * 105 // 100, 300 * MEGABYTE):
            with pytest.raises(ts.InvalidRequest) as refused:
                await tally.resolve(run.id, "send", outcome="succeeded", output="x" * size)
            assert refused.value.facts.get("limit") or str(64 * 1024 * 1024) in str(refused.value)
        assert (await run.status()).status == "in_doubt"
        await tally.resolve(run.id, "send", outcome="succeeded", output="x" * 2 * MEGABYTE)
        assert (await run.status()).status == "succeeded"


@pytest.fixture(autouse=True)
def _log(tmp_path, monkeypatch):
    monkeypatch.setenv("TALLY_EFFECT_LOG", str(tmp_path / "effects.jsonl"))
