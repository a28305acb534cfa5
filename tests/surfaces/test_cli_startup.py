"""Help and version answer quickly, because they wake nothing up that they do not need."""

import subprocess
import sys

import pytest

HEAVY = {
    "apsw",
    "asyncio",
    "cel_expr_python",
    "jsonschema_rs",
    "msgspec",
    "pydantic",
    "rich",
    "yaml",
}
LOADED = (
    "import sys; from tallystick.surfaces import cli; cli.main(sys.argv[1:]);"
    "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "also"),
    [(["--help"], set()), (["run", "--help"], set()), (["version"], {"typer"})],
)
def test_what_only_talks_imports_nothing_heavy(words, also):
    told = subprocess.run([sys.executable, "-c", LOADED, *words], capture_output=True, text=True)
    assert told.returncode == 0
    assert set(told.stderr.split()) & (HEAVY | also) == set()
