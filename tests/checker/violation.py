"""What the checker says: one violation, found in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never be so.

    code    stable, kebab-case: which rule was broken
    run     the run's id; "" for the store itself
    where   what it is about: an event number, an attempt, a column
    detail  what was found and what should have been, for people
    """

    code: str
    run: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.run or 'store'} {self.where}: {self.detail}"


def visit(node: str, instance: str) -> str:
    """An activation as the checker names it."""
    return f"{node}[{instance}]" if instance else node


def attempt(node: str, instance: str, number: int) -> str:
    """An attempt as the checker names it."""
    return f"{visit(node, instance)}#{number}"
