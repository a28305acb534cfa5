"""How much memory this process has needed at most, for tests that start one to find out."""

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """The largest resident size since this program began.

    Linux carries `ru_maxrss` over from the process that started this one, however large that was;
    `VmHWM` begins anew.
    """
    if STATUS.exists():
        line = next(x for x in STATUS.read_text("ascii").splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
