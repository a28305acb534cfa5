"""Each import contract of `pyproject.toml` is kept, and is seen to fail when it is broken.

The package is copied, one forbidden import is added to the copy, and `lint-imports` has to fail and
name the contract. The copy as it stands has to pass, so that a red one is the import's own doing.
"""

import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.project import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CONTRACTS: Final[dict[str, str]] = {
    contract["id"]: contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
}


@dataclass(frozen=True, slots=True)
class Offence:
    """One import that a contract forbids: the module it is added to, and the line."""

    contract: str
    module: str
    line: str
    also: tuple[tuple[str, str], ...] = ()  # (module, line): further imports of a chain

    def __str__(self) -> str:
        return f"{self.contract}: {self.module}: {self.line}"


BROKEN: Final = [
    Offence("layers", "tallystick.core.planted", "from tallystick.store import planted"),
    Offence("layers", "tallystick.store.planted", "import tallystick.engine"),
    Offence("layers", "tallystick.store.planted", "import tallystick.executors"),
    Offence("layers", "tallystick.executors.planted", "import tallystick.store"),
    Offence("layers", "tallystick.engine.planted", "import tallystick.surfaces"),
    Offence("layers", "tallystick.surfaces.planted", "import tallystick.testing"),
    Offence("layers", "tallystick.planted", "import json"),  # a module without a layer
    Offence("core-pure", "tallystick.core.planted", "import time"),
    Offence("core-pure", "tallystick.core.planted", "def f():\n    from os import path"),
    Offence("core-pure", "tallystick.core.planted", "from concurrent.futures import Future"),
    Offence("core-pure", "tallystick.core.planted", "import apsw"),
    Offence(
        "core-pure",
        "tallystick.core.planted",
        "import tallystick.errors.planted",
        also=(("tallystick.errors.planted", "import random"),),
    ),
    Offence(
        "executors-independent",
        "tallystick.executors.planted",
        "import tallystick.executors.other",
        also=(("tallystick.executors.other", "import json"),),
    ),
    Offence("drivers", "tallystick.store.planted", "import apsw"),
    Offence("drivers", "tallystick.engine.planted", "import psycopg"),
    Offence("drivers", "tallystick.store.sqlite.planted", "import sqlite3"),
    Offence("surfaces-client", "tallystick.surfaces.planted", "import tallystick.engine"),
    Offence("surfaces-client", "tallystick.surfaces.cli.planted", "import tallystick.store"),
    Offence("surfaces-client", "tallystick.surfaces.planted", "import tallystick.executors"),
    Offence("checker-independent", "tests.checker.planted", "import tallystick"),
    Offence("checker-independent", "tests.checker.planted", "from tallystick.core import planted"),
]
ALLOWED: Final = [
    Offence(
        "executors-independent",
        "tallystick.executors.planted",
        "import tallystick.executors.contract",
    ),
    Offence("drivers", "tallystick.store.sqlite", "import apsw"),
    Offence("drivers", "tallystick.store.postgres", "import psycopg"),
    Offence("surfaces-client", "tallystick.surfaces.client", "import tallystick.engine"),
    Offence("checker-independent", "tests.checker.planted", "import sqlite3"),
]


@pytest.fixture
def copy(tmp_path):
    """Give a folder with the package, the checker and the configuration."""
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src/tallystick", tmp_path / "tallystick", ignore=leave)
    shutil.copytree(ROOT / "tests/checker", tmp_path / "tests/checker", ignore=leave)
    shutil.copy(ROOT / "tests/__init__.py", tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_are_kept(copy):
    code, printed = lint_imports(copy)
    assert code == 0, printed
    assert all(f"{name} KEPT" in printed for name in CONTRACTS.values()), printed


@pytest.mark.parametrize("offence", BROKEN, ids=str)
def test_a_contract_fails_when_it_is_broken(copy, offence):
    commit(copy, offence)
    code, printed = lint_imports(copy, offence.contract)
    assert code == 1, printed
    assert f"{CONTRACTS[offence.contract]} BROKEN" in printed


@pytest.mark.parametrize("allowed", ALLOWED, ids=str)
def test_a_contract_lets_pass_what_is_fine(copy, allowed):
    commit(copy, allowed)
    code, printed = lint_imports(copy, allowed.contract)
    assert code == 0, printed


def test_every_contract_is_seen_to_fail():
    assert {offence.contract for offence in BROKEN} == CONTRACTS.keys()


def commit(folder: Path, offence: Offence) -> None:
    """Add the imports to the copy, making the modules that are not there."""
    for module, line in ((offence.module, offence.line), *offence.also):
        append(folder, module, line)
        _make_imported(folder, line)


def append(folder: Path, module: str, line: str) -> None:
    """Add a line to a module, as a file or a package, whichever it is; make it if it is neither."""
    path = folder.joinpath(*module.split("."))
    if path.is_dir():
        path = path / "__init__.py"
    else:
        path = path.with_suffix(".py")
        _make_package(folder, path.parent)
    before = path.read_text("utf-8") if path.exists() else ""
    path.write_text(f"{before}\n{line}\n", "utf-8")


def lint_imports(folder: Path, *contracts: str) -> tuple[int, str]:
    """Check the copy, and not the package that is installed; return exit code and print-out."""
    # The folder is put first on the path, before the editable install.
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); "
        "from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    chosen = [word for contract in contracts for word in ("--contract", contract)]
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), "--no-logo", "--no-cache", *chosen],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def _make_package(folder: Path, package: Path) -> None:
    """Turn a module into a package, if need be, so that another module fits below it."""
    if package == folder or package.is_dir():
        return
    package.mkdir()
    module = package.with_suffix(".py")
    if module.exists():
        module.rename(package / "__init__.py")
    else:
        (package / "__init__.py").touch()


def _make_imported(folder: Path, line: str) -> None:
    """Make the module of the package that a line imports, if it is not there."""
    match line.split():
        case ["import", name] | ["from", name, "import", "planted"] if "tallystick" in name:
            path = folder.joinpath(*name.split("."))
            if not path.is_dir() and not path.with_suffix(".py").exists():
                append(folder, name, "")
            if "from" in line:
                append(folder, f"{name}.planted", "")
        case _:
            pass
