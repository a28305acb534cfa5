"""Every public name, error and command is documented.

Public is what `tallystick.__all__` lists, every error class of `tallystick.errors`, and every
command of `tally`. A name counts as documented where the docs write it as code.
"""

import importlib
import importlib.util
import inspect
import re

import pytest

from tests import project

GENERATED = re.compile(r"\w+\(.*\)", re.DOTALL)  # the docstring that a dataclass gives itself


def test_the_public_names_exist_once_and_in_order():
    names = public_names()
    package = importlib.import_module("tallystick")
    assert [name for name in names if not hasattr(package, name)] == []
    assert len(names) == len(set(names))


def test_every_public_name_has_a_docstring():
    package = importlib.import_module("tallystick")
    silent = [name for name in public_names() if not says_something(getattr(package, name, None))]
    assert silent == []


def test_every_public_method_has_a_docstring():
    """A method that meets a protocol may inherit it."""
    package = importlib.import_module("tallystick")
    classes = [c for name in public_names() if inspect.isclass(c := getattr(package, name, None))]
    silent = [
        f"{owner.__name__}.{name}"
        for owner in classes
        for name, member in vars(owner).items()
        if not name.startswith("_") and _is_method(member)
        if not inspect.getdoc(getattr(owner, name))
    ]
    assert silent == []


def test_every_public_name_is_in_the_docs():
    text = documentation()
    missing = [name for name in public_names() if not written_as_code(name, text)]
    assert missing == []


def test_every_error_says_what_its_caller_decides():
    silent = [error.__name__ for error in error_classes() if not says_something(error)]
    assert silent == []


def test_every_error_is_in_the_docs():
    page = project.ROOT / "docs/errors.md"
    assert page.exists(), "docs/errors.md is missing: one entry for each class of tallystick.errors"
    text = page.read_text("utf-8")
    assert [e.__name__ for e in error_classes() if not written_as_code(e.__name__, text)] == []


def test_every_command_is_in_the_docs():
    text = documentation()
    missing = [c for c in commands() if not re.search(rf"\btally {re.escape(c)}\b", text)]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("call `open` first", True),
        ("`ts.open(path)`", True),
        ("```python\nts.open()\n```", True),
        ("open the file", False),
        ("`reopen`", False),
    ],
)
def test_a_name_counts_only_where_it_is_written_as_code(text, there):
    assert written_as_code("open", text) is there


def public_names() -> list[str]:
    """List what the package exports."""
    package = importlib.import_module("tallystick")
    names = getattr(package, "__all__", None)
    assert names, "tallystick.__all__ is missing or empty: it lists the public names"
    return list(names)


def error_classes() -> list[type[BaseException]]:
    """List the public exceptions that `tallystick.errors` defines."""
    module = module_of("tallystick.errors", "every exception that a caller can catch")
    found = [
        member
        for name, member in vars(module).items()
        if inspect.isclass(member)
        and issubclass(member, BaseException)
        and member.__module__ == module.__name__
        and not name.startswith("_")
    ]
    assert found, "tallystick.errors defines no exception"
    return found


def commands() -> list[str]:
    """List the commands of `tally`, those of groups as "group command"."""
    module = module_of("tallystick.surfaces.cli", "the command `tally`")
    app = getattr(module, "app", None)
    assert app is not None, "tallystick.surfaces.cli.app is missing: the typer application"
    typer_main = importlib.import_module("typer.main")
    return list(_walk(typer_main.get_command(app)))


def module_of(name: str, what: str):
    """Import a module; one that is not there fails the test by name, with what belongs there."""
    if importlib.util.find_spec(name) is None:
        pytest.fail(f"{name} is missing: {what}")
    return importlib.import_module(name)


def _walk(command, prefix: str = ""):
    for name, child in getattr(command, "commands", {}).items():
        if getattr(child, "hidden", False):
            continue
        if getattr(child, "commands", None):
            yield from _walk(child, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"


def documentation() -> str:
    """Give README.md and everything below docs/, but the records of decisions, as one text."""
    pages = [
        path
        for path in project.docs()
        if project.named(path) == "README.md"
        or (project.named(path).startswith("docs/") and "decisions" not in path.parts)
    ]
    return "\n".join(path.read_text("utf-8") for path in pages)


def written_as_code(name: str, text: str) -> bool:
    """Tell whether a name stands in a code span or a fenced block of a Markdown text."""
    code = re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL)
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", span) for span in code)


def says_something(thing: object) -> bool:
    """Tell whether a class or function has a docstring of its own; a plain value needs none."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)):
        return thing is not None
    docstring = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return bool(docstring) and not GENERATED.fullmatch(docstring)


def _is_method(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, classmethod | staticmethod | property)
