"""Scenes in which each fault point is reached: what has to be going on for a process to get there.

A scene is a case with room for one more fault, in the life that is looked at. The points that it
reaches, and how often, are counted by playing it without that fault.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.simulation.crash import Case, Verdict, play


@dataclass(frozen=True, slots=True)
class Scene:
    """A case, and which of its lives is looked at.

    also  what is planned in that life besides the fault, ""
    """

    name: str
    case: Case
    life: int = 0
    also: str = ""

    def with_fault(self, fault: str) -> Case:
        """The case with one more fault, in the life that is looked at."""
        before = (*self.case.faults, *[""] * self.life)[: self.life]
        planned = ",".join(filter(None, (self.also, fault)))
        return replace(self.case, faults=(*before, planned))


SCENES = (
    Scene("plain", Case()),
    Scene("takeover", Case(faults=("driver.after-accept:5:kill",)), life=1),
    Scene("leaving", Case(flow="lingering", then="leave")),
    Scene("large", Case(flow="large")),
    Scene("replay", Case(count=3), also="commit.guard:3:raise"),
    Scene("many", Case(count=50)),
)


@cache
def played(name: str) -> Verdict:
    """The scene as it is, without the fault that is looked for. Kept for the process."""
    (scene,) = (scene for scene in SCENES if scene.name == name)
    with TemporaryDirectory(prefix="tally-scene-") as folder:
        return play(scene.with_fault(""), Path(folder))


def hits(scene: Scene) -> Counter:
    """How often each point is visited in the life that is looked at."""
    lives = played(scene.name).hits
    return lives[scene.life] if len(lives) > scene.life else Counter()


def scene_of(point: str) -> Scene | None:
    """The first scene that reaches a point. None: none does."""
    return next((scene for scene in SCENES if hits(scene)[point]), None)
