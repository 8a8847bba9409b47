"""Numbers that the host has, or will have: it can be asked whether they are there, and for them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class Numbers(Protocol):
    """Float64 numbers, one after the other."""

    def ready(self) -> bool:
        """Tell whether they are there; never waits."""

    def read(self) -> list[float]:
        """Return them; only once `ready`."""


class NumbersAtHand:
    """Numbers that are there.

    Args:
        data: Native float64 numbers.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def ready(self) -> bool:
        return True

    def read(self) -> list[float]:
        return array("d", self._data).tolist()


@dataclass(slots=True)
class Values:
    """Several values, each of one number or more, that come from one device or several.

    Args:
        sources: The numbers of one device, and where in them each of its values begins. None where
            there was no room for them: then all are lost.
    """

    sizes: Sequence[int]
    sources: Sequence[tuple[Mapping[int, int], Numbers | None]]

    @property
    def is_lost(self) -> bool:
        """Loss: true if some of them never come."""
        return None in [numbers for _, numbers in self.sources]

    def ready(self) -> bool:
        """Tell whether all are there; never waits."""
        return all(numbers is not None and numbers.ready() for _, numbers in self.sources)

    def read(self) -> list[list[float]]:
        """Return the numbers of each value; only once `ready`."""
        found: list[list[float]] = [[]] * len(self.sizes)
        for begins, numbers in self.sources:
            own = numbers.read() if numbers is not None else []
            for place, begin in begins.items():
                found[place] = own[begin : begin + self.sizes[place]]
        return found
