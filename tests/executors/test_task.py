"""The decorator, the context, and finding a task by its name."""

import asyncio
import datetime as dt
import importlib.util
import sys
import textwrap

import pytest

from tallystick.errors import InvalidRequest
from tallystick.executors.contract import Statement
from tallystick.executors.function import roots
from tallystick.executors.function.resolve import resolve, task_name
from tallystick.executors.function.task import (
    STATEMENT_BYTES_MAX,
    STATEMENTS_MAX,
    TaskContext,
    TaskOptions,
    options_of,
    task,
)


def test_the_decorator_works_bare_and_with_arguments_and_leaves_the_function_as_it_was():
    def plain(n):
        return n + 1

    assert task(plain) is plain
    assert options_of(plain) == TaskOptions(None, None)
    assert task(effect="idempotent", max_attempts=3)(plain) is plain
    assert options_of(plain) == TaskOptions("idempotent", 3)
    assert plain(1) == 2
    assert options_of(print) == TaskOptions(None, None)


@pytest.mark.case("R1")
@pytest.mark.parametrize("number", [0, -1, True, False, "3", 1.0, [], 2.5])
def test_max_attempts_is_a_number_of_calls(number):
    with pytest.raises(InvalidRequest, match="max_attempts"):
        task(max_attempts=number)


@pytest.mark.parametrize("effect", ["readonly", "", "MUTATING", 3, True, []])
def test_an_unknown_effect_is_refused_with_the_known_ones(effect):
    with pytest.raises(InvalidRequest) as refused:
        task(effect=effect)
    assert "read_only" in refused.value.next_step


@pytest.mark.parametrize("thing", [int, 3, "name", staticmethod])
def test_only_functions_are_tasks(thing):
    with pytest.raises(InvalidRequest):
        task(thing)
    with pytest.raises(InvalidRequest):
        task(effect="mutating")(thing)


# ------------------------------------------------------------------------------------------ context


def test_a_context_can_be_made_for_a_test_of_ones_own():
    ctx = TaskContext(idempotency_key="key", timeout_ms=1500, started_at_ms=1_000)
    assert ctx.timeout == dt.timedelta(seconds=1.5)
    assert ctx.deadline == dt.datetime(1970, 1, 1, 0, 0, 2, 500_000, tzinfo=dt.UTC)
    assert not ctx.stop_requested
    ctx.request_stop()
    assert ctx.stop_requested
    ctx.write("insert into t values (?)", ["a"])
    assert ctx.statements == (Statement("insert into t values (?)", ("a",), 1),)
    assert TaskContext().timeout is None
    assert TaskContext().deadline is None


@pytest.mark.parametrize(
    ("params", "rows"), [([object()], 1), ([[1]], 1), ([], -1), ([], True), ([], 1.0)]
)
def test_a_statement_that_cannot_be_kept_is_refused_at_once(params, rows):
    ctx = TaskContext()
    with pytest.raises(InvalidRequest):
        ctx.write("delete from t", params, rows)
    assert ctx.statements == ()


def test_statements_are_bounded():
    ctx = TaskContext()
    for _ in range(STATEMENTS_MAX):
        ctx.write("x")
    with pytest.raises(InvalidRequest, match="more than"):
        ctx.write("x")
    with pytest.raises(InvalidRequest, match="more than"):
        TaskContext().write("x", ["y" * STATEMENT_BYTES_MAX])


def test_without_a_database_there_is_nothing_to_read():
    with pytest.raises(InvalidRequest, match="no database"):
        TaskContext().read("select 1")


# ------------------------------------------------------------------------------------------ finding


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make folders with modules; the process forgets them afterwards."""
    monkeypatch.setattr(roots, "_prefixes", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def make(name, **modules):
        root = tmp_path / name
        for module, text in modules.items():
            path = root / f"{module}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return root

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


SHOP = """
from __future__ import annotations
from dataclasses import dataclass
import functools
import tallystick_rules_{n} as rules
from tallystick.executors.function.task import task, TaskContext

@dataclass
class Order:
    n: int

@task(effect="idempotent", max_attempts=3)
async def charge(order: Order, *, ctx: TaskContext) -> str:
    return rules.name

@task(effect="transactional")
def book(order: Order) -> None: ...

def plain() -> str:
    import tallystick_later
    return tallystick_later.name

class Kept:
    @staticmethod
    def static(n: int) -> int:
        return n
    def method(self) -> None: ...
    def __call__(self, n: int) -> int:
        return n

kept = Kept()
anonymous = lambda: 3
number = 3

def generates():
    yield 1

def around(function):
    @functools.wraps(function)
    def inner(n: int) -> int:
        return function(n)
    return inner

@around
def wrapped(n: int) -> int:
    return n
"""


def test_a_task_is_found_with_what_its_decorator_says(folder):
    root = folder("a", tallyshop=SHOP.format(n=1), tallystick_rules_1="name = 'a'")
    found = resolve("tallyshop:charge", root)
    assert (found.effect, found.max_attempts, found.mode) == ("idempotent", 3, "async")
    assert found.signature.context == "ctx"
    assert len(found.contract) == 64
    assert resolve("tallyshop:book", root).mode == "transactional"
    plain = resolve("tallyshop:plain", root)
    assert (plain.effect, plain.max_attempts, plain.mode) == (None, None, "thread")
    assert plain.mode_under("transactional") == "transactional"
    assert resolve("tallyshop:Kept.static", root).function(3) == 3
    assert resolve("tallyshop:kept", root).function(3) == 3
    assert resolve("tallyshop:wrapped", root).function(3) == 3


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("tallyshop", "task-name", "module:function"),
        ("tallyshop:", "task-name", "module:function"),
        (":charge", "task-name", "module:function"),
        ("../shop:charge", "task-name", "module:function"),
        ("tallyshop:charge()", "task-name", "module:function"),
        ("tallyshop:a:b", "task-name", "module:function"),
        ("__main__:charge", "task-name", "__main__"),
        ("tallyshop:<lambda>", "task-name", "lambda"),
        ("tallyshop:f.<locals>.g", "task-name", "inside another function"),
        ("tallyshop:anonymous", "task-name", "lambda"),
        ("tallyshop:number", "task-name", "int"),
        ("tallyshop:Order", "task-name", "class"),
        ("tallyshop:generates", "task-name", "generator"),
        ("tallyshop:Kept.method", "task-name", "method"),
        ("tallyshop:missing", "task-missing", "no 'missing'"),
        ("nosuchmodule:f", "task-import", "no module 'nosuchmodule'"),
        ("tallyshop.inner:f", "task-import", "no module"),
        ("broken:f", "task-import", "ZeroDivisionError"),
        ("exits:f", "task-import", "SystemExit"),
        ("needs:f", "task-import", "nosuchlibrary"),
        ("syntax:f", "task-import", "SyntaxError"),
    ],
)
def test_what_cannot_be_found_is_refused_with_what_where_and_what_to_do(folder, name, code, says):
    root = folder(
        "a",
        tallyshop=SHOP.format(n=1),
        tallystick_rules_1="name = 'a'",
        broken="1 / 0",
        exits="raise SystemExit(1)",
        needs="import nosuchlibrary",
        syntax="def",
    )
    with pytest.raises(InvalidRequest) as refused:
        resolve(name, root)
    error = refused.value
    assert error.code == code
    assert says in error.message
    assert name in error.message
    assert error.next_step
    assert error.facts == {"task": name}


def test_two_folders_with_modules_of_one_name_do_not_clash(folder):
    """Also where a function imports its neighbour only when it is called."""
    found = {}
    for name in ("a", "b", "c"):
        root = folder(
            name,
            tallyshop=SHOP.format(n=1),
            tallystick_rules_1=f"name = 'rules of {name}'",
            tallystick_later=f"name = 'later of {name}'",
        )
        found[name] = resolve("tallyshop:charge", root), resolve("tallyshop:plain", root)
    for name, (charge, plain) in found.items():
        order = charge.signature.arguments(b'{"order":{"n":1}}')["order"]
        assert asyncio.run(charge.function(order, ctx=TaskContext())) == f"rules of {name}"
        assert plain.function() == f"later of {name}"
        assert charge.function is resolve("tallyshop:charge", plain_root(charge)).function
    import tallyshop

    assert tallyshop.charge is found["a"][0].function  # the first is an ordinary module


def plain_root(found):
    from pathlib import Path

    return Path(found.function.__code__.co_filename).parent


def test_a_folder_never_replaces_a_module_that_others_use(folder):
    """`json.py` beside a definition is the folder's own business."""
    import json

    root = folder("a", json="def f() -> int:\n    import json\n    return json.mine\nmine = 7")
    assert resolve("json:f", root).function() == 7
    assert importlib.import_module("json") is json


def test_what_every_folder_has_is_no_clash(folder):
    """Two projects with a conftest.py each are ordinary neighbours on the import path."""
    for name in ("a", "b"):
        task_text = f"def f() -> str: return '{name}'"
        root = folder(name, conftest="", setup="", **{f"tally_only_{name}": task_text})
        found = resolve(f"tally_only_{name}:f", root).function
        assert found.__module__ == f"tally_only_{name}"


def test_packages_and_their_inner_imports_work_in_a_private_folder(folder):
    pair = []
    for name in ("a", "b"):
        root = folder(
            name,
            **{
                "pack/__init__": "import pack.inner\nfrom pack import inner as again\n"
                f"name = '{name}'",
                "pack/inner": "from . import other\nfrom .other import name\n"
                "import pack.other\nassert other is pack.other\n"
                "def f() -> str: return name",
                "pack/other": f"name = 'other of {name}'",
                "other": "name = 'not inside the package'",
                "top": "import pack.inner\nimport pack.other as other\n"
                "def f() -> str: return pack.inner.f() + other.name + pack.name",
            },
        )
        pair.append(resolve("top:f", root).function())
        pair.append(resolve("pack.inner:f", root).function())
    assert pair == ["other of aother of aa", "other of a", "other of bother of bb", "other of b"]


def test_a_task_gets_the_name_by_which_another_process_finds_it():
    assert task_name(textwrap.dedent) == "textwrap:dedent"

    def local():
        pass

    def main():
        pass

    main.__module__, main.__qualname__ = "__main__", "main"
    for function, remedy in (
        (lambda: 3, "def"),
        (local, "top level"),
        (main, "module of its own"),
        (object(), "def"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            task_name(function)
        assert remedy in refused.value.next_step
