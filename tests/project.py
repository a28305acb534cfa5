"""What the project's own files are: the ones that a commit would hold."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
NOT_OURS: Final = {".venv", ".git", "__pycache__", "build", "dist"}


@cache
def files() -> tuple[Path, ...]:
    """List every file that is tracked, or would be by `git add`; without git, every file."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
        return tuple(path for path in paths if path.is_file())
    return tuple(
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file() and not NOT_OURS & set(path.relative_to(ROOT).parts)
    )


def sources(*folders: str) -> list[Path]:
    """List the Python files below the named folders, or all of them."""
    python = [path for path in files() if path.suffix == ".py"]
    return [
        path
        for path in python
        if not folders or any(path.is_relative_to(ROOT / folder) for folder in folders)
    ]


def docs() -> list[Path]:
    """List the Markdown files."""
    return [path for path in files() if path.suffix == ".md"]


def named(path: Path) -> str:
    """Give a file the name that people know it by."""
    return path.relative_to(ROOT).as_posix()
