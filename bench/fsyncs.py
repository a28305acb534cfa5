"""Counting fsyncs: a few lines of C between the process and libc, where a C compiler is at hand.

SQLite calls `fdatasync` through libc and offers no counter of it. Nothing is timed meanwhile.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def build(folder: Path) -> Path | None:
    """Compile the counter into `folder`. None: there is no compiler for it here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    library = folder / "fsyncs.so"
    if compiler is None:
        return None
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, check=False)
    return library if built.returncode == 0 else None


def environment(library: Path, counters: Path) -> dict[str, str]:
    """What to set for a process whose fsyncs are to be counted in the file `counters`."""
    counters.write_bytes(bytes(4096))
    return {"LD_PRELOAD": str(library), "FSYNCS": str(counters)}


def read(counters: Path) -> tuple[int, int]:
    """Syncs of write-ahead logs, one for each commit and checkpoint, and of all other files."""
    log, other = struct.unpack_from("@ll", counters.read_bytes())
    return log, other
