"""Curves as they are sent: buckets of several series over the same steps, as JSON or as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.curves.buckets import COUNTS, STATS, Buckets

MAX_U32: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One series.

    Args:
        label: What it is of: `column`, and `layer` if it is of one.
    """

    label: dict[str, str]
    buckets: Buckets
    item: int

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the arrays by name; counts that are all zero are left out."""
        for name, values in zip(STATS, self.buckets.stats, strict=True):
            yield name, values[:, self.item]
        for name, counts in zip(COUNTS, self.buckets.counts, strict=True):
            column = counts[:, self.item]
            if name == COUNTS[0] or column.any():
                yield name, column.astype(np.uint32)


def steps_as_array(steps: IndexArray) -> npt.NDArray[Any]:
    """Return steps as U32, as F64 where one is too large for that."""
    fits = not len(steps) or int(steps[-1]) <= MAX_U32
    return steps.astype(np.uint32 if fits else np.float64)


def as_arrays(
    curves: Sequence[Curve], steps: IndexArray, times_ns: IndexArray
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an answer: `step`, `time`, `0.min` and so on."""
    arrays: dict[str, npt.NDArray[Any]] = {"time": times_ns / 1e9, "step": steps_as_array(steps)}
    for number, curve in enumerate(curves):
        arrays |= {f"{number}.{name}": values for name, values in curve.arrays()}
    return arrays


def as_plain(curves: Sequence[Curve], steps: IndexArray, times_ns: IndexArray) -> dict[str, Any]:
    """Return the same as plain data; null where a bucket has no finite value."""
    return {
        "step": steps.tolist(),
        "time": (times_ns / 1e9).tolist(),
        "series": [curve.label | dict(_plain(curve)) for curve in curves],
    }


def _plain(curve: Curve) -> Iterator[tuple[str, list[Any]]]:
    for name, values in curve.arrays():
        plain = values.tolist()
        if name in STATS:
            plain = [None if value != value else value for value in plain]  # noqa: PLR0124 - NaN
        yield name, plain
