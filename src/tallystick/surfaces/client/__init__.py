"""The Python client: open a store, start runs, wait for them, decide doubts.

places   which database is meant
sources  from a file, text or `Definition` to something that can be started
checking what can be said about a definition file before anything is started
runs     what a run looks like from outside, and how it is read
steps    what has become of each step, and what is in doubt
handle   one run: its status, events and result
tally    the verbs
blocking the same verbs for scripts and notebooks, without `await`
"""

from tallystick.surfaces.client.blocking import BlockingRun, BlockingTally, open_blocking
from tallystick.surfaces.client.checking import Validated, validate
from tallystick.surfaces.client.handle import RunHandle
from tallystick.surfaces.client.places import database_path
from tallystick.surfaces.client.runs import HistoryEvent, RunInfo
from tallystick.surfaces.client.sources import problem_fact
from tallystick.surfaces.client.steps import Doubt, StepInfo
from tallystick.surfaces.client.tally import EngineOf, Tally
from tallystick.surfaces.client.tally import open_tally as open

__all__ = [
    "BlockingRun",
    "BlockingTally",
    "Doubt",
    "EngineOf",
    "HistoryEvent",
    "RunHandle",
    "RunInfo",
    "StepInfo",
    "Tally",
    "Validated",
    "database_path",
    "open",
    "open_blocking",
    "problem_fact",
    "validate",
]
