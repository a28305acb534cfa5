"""The Python client: open a store, start runs, wait for them, decide doubts.

places   which database is meant
sources  from a file, text or `Definition` to something that can be started
runs     what a run looks like from outside, and how it is read
handle   one run: its status, events and result
tally    the verbs
blocking the same verbs for scripts and notebooks, without `await`
"""

from tallystick.surfaces.client.blocking import BlockingRun, BlockingTally, open_blocking
from tallystick.surfaces.client.handle import RunHandle
from tallystick.surfaces.client.places import database_path
from tallystick.surfaces.client.runs import Doubt, HistoryEvent, RunInfo
from tallystick.surfaces.client.tally import Tally
from tallystick.surfaces.client.tally import open_tally as open

__all__ = [
    "BlockingRun",
    "BlockingTally",
    "Doubt",
    "HistoryEvent",
    "RunHandle",
    "RunInfo",
    "Tally",
    "database_path",
    "open",
    "open_blocking",
]
