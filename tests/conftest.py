"""What every test shares: the hypothesis profiles.

`HYPOTHESIS_PROFILE` picks one by name; without it CI gets `ci` and everybody else `dev`. No
profile has a deadline, because a busy machine is not a bug.
"""

import os
from typing import Final

from hypothesis import HealthCheck, settings

EXAMPLES: Final = {
    "dev": 60,  # quick: found while writing
    "ci": 250,  # the same examples every time, so that red is the change's own doing
    "night": 10_000,  # new examples every time: the search for what nobody thought of
}

for name, examples in EXAMPLES.items():
    settings.register_profile(
        name,
        max_examples=examples,
        derandomize=name == "ci",
        print_blob=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "dev")
)
