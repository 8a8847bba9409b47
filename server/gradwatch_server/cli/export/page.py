"""A page of what is kept of a run, as `/rows` answers it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gradwatch_server.api import safetensors
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.curves.buckets import COUNTS, STATS

RUN: str = "run"
"""The table of the numbers of the run; every other one is a column of the layers."""


@dataclass(frozen=True, slots=True, eq=False)
class TableNumbers:
    """One number per step and item.

    Args:
        values: (steps, items) the numbers.
        known: (steps, items) whether there is one.
    """

    values: FloatArray
    known: BoolArray

    def of(self, items: IndexArray) -> TableNumbers:
        return TableNumbers(self.values[:, items], self.known[:, items])


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Steps of one epoch that follow one another, all kept in the same width.

    Args:
        width: Steps of a bucket, 1 for single steps.
        steps: (steps,) the steps, of buckets the first one of each.
        times_ns: (steps,) when the last record of each came in, nanoseconds since the epoch.
        skipped: (steps,) whether a GradScaler skipped the step; of buckets all False.
        next: The first step of the next page, None for the last page of the epoch.
        buckets: Table to statistic or count to (buckets, items), of buckets.
    """

    epoch: int
    width: int
    steps: IndexArray
    times_ns: IndexArray
    skipped: BoolArray
    places: IndexArray
    next: int | None
    rows: Mapping[str, TableNumbers]
    buckets: Mapping[str, Mapping[str, npt.NDArray[Any]]]
    facts: Mapping[str, Any]

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read an answer.

        Raises:
            ValueError: If it is none.
        """
        arrays, texts = safetensors.decode(body)
        facts = {name: json.loads(text) for name, text in texts.items() if name not in _TEXTS}
        steps = arrays.get("step", np.zeros(0, dtype=np.int64))
        none = np.zeros(len(steps), dtype=np.int64)
        tables = [RUN, *facts["layer_columns"]] if len(arrays["place"]) else [RUN]
        width = int(facts["width"])
        there = [name for name in tables if name in arrays]
        bucketed = [name for name in tables if f"{name}.n" in arrays]
        return cls(
            int(facts["epoch"]),
            width,
            steps,
            arrays.get("time_ns", none),
            arrays.get("skipped", none).astype(np.bool_),
            arrays["place"],
            facts["next"],
            {name: _numbers(arrays, name) for name in there},
            {
                name: {one: arrays[f"{name}.{one}"] for one in (*STATS, *COUNTS)}
                for name in bucketed
            },
            facts,
        )


_TEXTS = ("run", "boot")


def _numbers(arrays: Mapping[str, npt.NDArray[Any]], name: str) -> TableNumbers:
    values = arrays[name].astype(np.float64)
    known = arrays.get(f"{name}.known")
    return TableNumbers(values, ~np.isnan(values) if known is None else known.astype(np.bool_))
