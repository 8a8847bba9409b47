"""One cell of the table of loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """Verdict of a cell of the table."""

    RIGHT = "right"
    NULL = "null"
    WRONG = "wrong"
    NO_MEANING = "-"


@dataclass(slots=True)
class Cell:
    """One cell: the worst of all that was compared for it.

    Args:
        nulls: What gradwatch does not know, with what it says about why.
        wrongs: What it says wrongly.
        is_compared: Whether anything was compared.
        number: What the cell shows in place of a verdict, where it is a number.
    """

    nulls: list[str] = field(default_factory=list)
    wrongs: list[str] = field(default_factory=list)
    is_compared: bool = False
    number: int | None = None

    @property
    def verdict(self) -> Verdict:
        if self.wrongs:
            return Verdict.WRONG
        if self.nulls:
            return Verdict.NULL
        return Verdict.RIGHT if self.is_compared else Verdict.NO_MEANING

    def expect(self, *, true: bool, otherwise: str) -> None:
        """Compare something that must hold."""
        self.is_compared = True
        if not true:
            self.wrongs.append(otherwise)

    def null(self, what: str) -> None:
        """Take in that gradwatch does not know something."""
        self.is_compared = True
        self.nulls.append(what)
