"""The Python client: open a store, start runs, wait for them, decide doubts.

`tally` has the verbs and `handle` what can be asked of one run; `blocking` is both of them for
scripts and notebooks, without `await`. `places` knows which database is meant, `sources` comes from
a file or a `Definition` to something that can be started, `runs` is what a run looks like from
outside.
"""

from tallystick.surfaces.client.blocking import BlockingRun, BlockingTally, open_blocking
from tallystick.surfaces.client.checking import Validated, validate
from tallystick.surfaces.client.handle import RunHandle
from tallystick.surfaces.client.places import database_path
from tallystick.surfaces.client.runs import HistoryEvent, RunInfo
from tallystick.surfaces.client.sources import problem_fact
from tallystick.surfaces.client.steps import Doubt, StepInfo
from tallystick.surfaces.client.tally import EngineOf, Tally
from tallystick.surfaces.client.tally import open_tally as open  # noqa: A004  as in `ts.open`

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
