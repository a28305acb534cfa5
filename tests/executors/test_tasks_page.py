"""The examples of docs/tasks.md are run, not only read."""

import re
import sys

import pytest

from tallystick.core.commands import Cancelled, Failed, Succeeded
from tallystick.executors.function import roots
from tallystick.executors.function.resolve import resolve
from tests import project
from tests.executors.bench import Bench

EXAMPLE = re.compile(r"^```python\n# (\w+)\.py\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """Write the modules of the page into a folder; the process forgets them afterwards."""
    monkeypatch.setattr(roots, "_prefixes", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    text = (project.ROOT / "docs/tasks.md").read_text("utf-8")
    for name, source in EXAMPLE.findall(text):
        (tmp_path / f"{name}.py").write_text(source)
    yield lambda task: resolve(task, tmp_path)
    for name in set(sys.modules) - before:
        del sys.modules[name]


async def test_the_tasks_of_the_page_do_what_it_says(examples):
    bench = Bench(find=lambda name, root: examples(name))
    order = {"number": "17", "cents": 1999}
    assert await bench.run("shop:charge", order=order) == Succeeded(b'{"reference":"17/1"}')
    assert await bench.run("shop:total", orders=[order, order]) == Succeeded(b"3998")
    assert await bench.run("shop:plain") == Succeeded(b'"hello world"')
    assert await bench.run("shop:reserve", effect="transactional", sku="A", count=1) == Succeeded(
        b"null"
    )
    assert bench.reports[-1][2][0].params == (1, "A", 1)
    over = await bench.run("shop:charge", order={"number": "18", "cents": 100_001})
    assert isinstance(over, Failed)
    assert over.message == "PermissionError: over the limit of the card"
    wrong = await bench.run("shop:total", orders=[order, {"number": "18", "cents": "1"}])
    assert wrong == Failed("input_invalid", "orders[1].cents: expected int, got str", "none")
    assert await bench.run("export:export", rows=["a", "b"]) == Succeeded(b"2")
    bench.executor.close()


async def test_the_long_task_of_the_page_stops_when_it_is_asked_to(examples):
    export = examples("export:export").function

    def export_when_asked(rows: list[str], ctx) -> int:
        ctx.request_stop()
        bench.executor.cancel(call, "cancel")
        return export(rows, ctx=ctx)

    bench = Bench()
    call = bench.start(export_when_asked, rows=["a"])
    assert await bench.end_of(call) == Cancelled()
    bench.executor.close()


def test_the_tests_of_the_page_pass(examples):
    page = examples("test_shop:test_one_key_is_charged_once")
    page.function()
    examples("test_shop:test_a_reservation_is_one_statement").function()
