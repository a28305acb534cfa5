"""Did you mean …? The word of a list that a mistyped one is nearest to.

The work is bounded for the whole of one compile: a source of a hundred thousand misspelled keys is
told what is wrong with all of them, and of the first ones what was probably meant.
"""

from collections.abc import Iterable
from typing import Final

COMPARISONS_MAX: Final = 5_000
"""Words compared in one compile: a fraction of a second."""

WORD_CHARS_MAX: Final = 32
DISTANCE_MAX: Final = 2


class Nearest:
    """Gives suggestions, until its budget of comparisons is used up."""

    def __init__(self, comparisons_max: int = COMPARISONS_MAX) -> None:
        self._left = comparisons_max

    def of(self, word: str, options: Iterable[str]) -> str | None:
        """Return the option nearest to a word; None when none is near, or the budget is used up.

        Near is: equal but for case, `-` and `_`, or at most 2 edits away and less than half its
        length. The first of several equally near ones is returned.
        """
        if len(word) > WORD_CHARS_MAX:
            return None
        best, least = None, min(DISTANCE_MAX, (len(word) - 1) // 2) + 1
        plain = _plain(word)
        for option in options:
            if self._left <= 0:
                return best
            if abs(len(option) - len(word)) >= DISTANCE_MAX + 1:
                continue
            self._left -= 1
            found = _distance(plain, _plain(option))
            if found < least:
                best, least = option, found
        return best

    def remedy(self, word: str, options: Iterable[str]) -> str | None:
        """Return the question "did you mean `…`?", or None."""
        found = self.of(word, options)
        return None if found is None else f"did you mean `{found}`?"


def _plain(word: str) -> str:
    return word.lower().replace("-", "_")


def _distance(one: str, other: str) -> int:
    """Count the letters to insert, delete, replace, or swap with their neighbour.

    Source: optimal string alignment, the restricted distance of Damerau and Levenshtein.
    """
    if one == other:
        return 0
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, seen in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != seen))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == seen:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]
