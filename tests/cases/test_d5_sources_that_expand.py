"""D5: a few hundred bytes of aliases are refused before anything walks what they stand for."""

import asyncio
import time

import pytest

import tallystick as ts
from tallystick.core.compiler import compile_source
from tallystick.core.diagnostics import SourceRefused
from tests.cases.field import definition, memory_of, tally


def ladder(steps: int = 9, width: int = 9) -> str:
    """The classic: a list of nine, nine times that, and so on."""
    rungs = [f"  a0: &a0 [{', '.join(['x'] * width)}]"]
    rungs += [f"  a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * width)}]" for at in range(1, steps)]
    return "\n".join(rungs)


def body(inside: str, key: str = "types") -> bytes:
    return f"tally: 1\nworkflow: d5\n{key}:\n{inside}\nsteps:\n  - {{id: a, call: m:f}}\n".encode()


def maps(steps: int = 9) -> str:
    rungs = ["  a0: &a0 {b: x, c: x, d: x}"]
    rungs += [
        f"  a{at}: &a{at} {{b: *a{at - 1}, c: *a{at - 1}, d: *a{at - 1}, e: *a{at - 1}}}"
        for at in range(1, steps)
    ]
    return "\n".join(rungs)


BOMBS = {
    "the ladder": body(ladder()),
    "as labels": body(ladder(), "labels"),
    "as the output": body(ladder(), "output"),
    "unknown key": body(ladder(), "bomb"),
    "of mappings": body(maps(12)),
    "wide": body(ladder(3, 2_000)),
    "one long text": body(
        "  a: &a " + "x" * 100_000 + "\n  b: [" + ", ".join(["*a"] * 10_000) + "]", "output"
    ),
    "no document": ladder().replace("  a", "a").encode(),
    "merged": body(
        "  a0: &a0 {"
        + ", ".join(f"k{n}: x" for n in range(500))
        + "}\n"
        + "\n".join(f"  a{n}: {{<<: *a0, z: 1}}" for n in range(1, 2_000))
    ),
}

pytestmark = [pytest.mark.case("D5"), pytest.mark.invariant("K5")]


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_it_is_refused_at_once_and_says_what_the_limit_is(bomb):
    started, cpu = time.perf_counter(), time.process_time()
    with pytest.raises(SourceRefused) as refused:
        compile_source(bomb, "d5.yaml")
    spent = min(time.perf_counter() - started, time.process_time() - cpu)
    (problem,) = refused.value.diagnostics
    assert problem.code in {"yaml-too-many-nodes", "source-expands"}
    assert "expand" in problem.message
    assert spent < 0.2


@pytest.mark.slow
def test_it_costs_little_memory(tmp_path):
    for name, bomb in BOMBS.items():
        assert memory_of("compile_and_refuse", bomb.decode()) < 50 * 1024 * 1024, name


@pytest.mark.slow
async def test_a_run_in_progress_is_not_delayed(tmp_path, monkeypatch):
    monkeypatch.setenv("TALLY_EFFECT_LOG", str(tmp_path / "effects"))
    chain = definition(
        "tally: 1\nworkflow: chain\nsteps:\n"
        + "".join(f"  - {{id: s{n}, call: TASKS:give, with: {{x: 1}}}}\n" for n in range(100))
    )
    async with ts.open(tmp_path / "d5.db", engine=True) as tally:
        run = await tally.start(chain)
        paths = []
        for number, bomb in enumerate(BOMBS.values()):
            paths.append(tmp_path / f"bomb-{number}.yaml")
            paths[-1].write_bytes(bomb)
        longest, last = 0.0, time.perf_counter()
        work = asyncio.ensure_future(run.result())
        while not work.done():
            path = paths.pop() if paths else None
            if path is not None:
                with pytest.raises(ts.InvalidRequest, match="expand"):
                    await tally.start(path)
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - last)
            last = time.perf_counter()
        assert not paths, "every bomb was given while the run was in progress"
        assert longest < 1
        await work


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["validate", "run"])
def test_the_command_refuses_it_in_one_sentence(tmp_path, verb):
    (tmp_path / "bomb.yaml").write_bytes(BOMBS["the ladder"])
    done = tally(verb, "bomb.yaml", status=2, folder=tmp_path)
    said = (done.stdout + done.stderr).decode()
    assert "expands to more than 150,000 nodes" in said
    assert len(said) < 2_000
