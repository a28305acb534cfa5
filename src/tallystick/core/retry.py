"""How long a failed step waits, and how far its tries go.

The wait before try n + 1 is drawn uniformly from 0 to a bound that grows by `factor` with every
failure and never passes `backoff_max_ms` (full jitter: clients that failed together do not come
back together). The arithmetic stays in logarithms until the result is known to be small, so that no
attempt number overflows.
"""

from __future__ import annotations

import math

from tallystick.core.messages import Terms

DELAY_MAX_MS = 100 * 365 * 24 * 3_600_000
"""No wait is longer than a hundred years, whatever a policy says."""


def backoff_bound_ms(base_ms: int, factor: float, max_ms: int, failures: int) -> int:
    """The longest wait after this many failures (≥ 1): min(max, base · factor^(failures - 1)).

    Always within [0, max_ms], for any non-negative base and factor.
    """
    cap = max(0, min(max_ms, DELAY_MAX_MS))
    if base_ms <= 0 or cap == 0:
        return 0
    if failures <= 1 or factor == 1:
        return min(base_ms, cap)
    if factor <= 0:
        return 0
    exponent = math.log(base_ms) + (failures - 1) * math.log(factor)
    if exponent >= math.log(cap):
        return cap
    grown = int(math.exp(exponent))
    # The logarithm rounds: a factor of 1 and a little must not make the first wait shorter.
    return min(cap, max(grown, base_ms) if factor > 1 else grown)


def draw_ms(bound_ms: int, seed: bytes) -> int:
    """A wait between 0 and the bound, both included, from injected random bytes."""
    return int.from_bytes(seed[:8], "big") % (bound_ms + 1)


def due_at(terms: Terms, tries: int, now: int, seed: bytes) -> int:
    """When the next try may begin, after `tries` failures or interruptions (≥ 1)."""
    bound = backoff_bound_ms(terms.backoff_ms, terms.factor, terms.backoff_max_ms, tries)
    return now + draw_ms(bound, seed)
