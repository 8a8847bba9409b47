"""One file per run: compressed arrays, and what is known of it as JSON.

A fork's file holds its own steps only; `Collection.read` puts those of its parent before them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.alerts.recorded import INDEXED, FaultLabel, Recorded, Rows, Split, steps_of

SUFFIX: Final = ".npz"
_ABOUT: Final = "about"
_ROW_ARRAYS: Final = tuple(each.name for each in dataclasses.fields(Rows))
_TUPLES: Final = ("layers", "numel", "dtypes", "beta2")


def write(directory: Path, recorded: Recorded) -> Path:
    """Write a run; of a fork `recorded.rows` are its own steps only. Return the file."""
    facts = {
        each.name: getattr(recorded, each.name)
        for each in dataclasses.fields(Recorded)
        if each.name not in ("rows", "fault")
    }
    facts["fault"] = None if recorded.fault is None else dataclasses.asdict(recorded.fault)
    arrays: dict[str, Any] = {name: getattr(recorded.rows, name) for name in _ROW_ARRAYS}
    arrays[_ABOUT] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    path = directory / f"{recorded.name}{SUFFIX}"
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        np.savez_compressed(file, **arrays)
    draft.replace(path)  # whole or not at all
    return path


class Collection:
    """The runs in a directory.

    Args:
        directory: Where `write` put them.

    Attributes:
        directory: The same.
        names: Of all runs, each parent before its forks.

    Raises:
        FileNotFoundError: If there are none.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names = sorted(path.name.removesuffix(SUFFIX) for path in directory.glob("*" + SUFFIX))
        if not self.names:
            msg = f"{directory}: no recorded runs; `scripts/bench alerts` makes them"
            raise FileNotFoundError(msg)
        self._read = lru_cache(maxsize=4)(self.read_own)  # a parent is asked for by all its forks

    def read(self, name: str) -> Recorded:
        """Return a run with all its steps, of a fork also those of its parent.

        Raises:
            FileNotFoundError: If there is none of that name.
        """
        own = self._read(name)
        if own.parent is None:
            return own
        before = self._read(own.parent).rows
        return dataclasses.replace(own, rows=_joined(before, own.forked_at, own.rows))

    def read_own(self, name: str) -> Recorded:
        """Return a run with the steps of its own file."""
        with np.load(self.directory / f"{name}{SUFFIX}") as file:
            facts = json.loads(file[_ABOUT].tobytes())
            rows = Rows(**{array: file[array] for array in _ROW_ARRAYS})
        return Recorded(rows=rows, **_facts(facts))


def _facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    known = {**facts, "split": Split(facts["split"])}
    known |= {name: tuple(facts[name]) for name in _TUPLES}
    if facts["fault"] is not None:
        fault: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in facts["fault"].items()
        }
        known["fault"] = FaultLabel(**fault)
    return known


def _joined(before: Rows, steps: int, after: Rows) -> Rows:
    joined: dict[str, Any] = {}
    for name in _ROW_ARRAYS:
        own, further = getattr(before, name), getattr(after, name)
        at = INDEXED.get(name, name)
        own = own[steps_of(before, at) < steps] if at in INDEXED.values() else own[:steps]
        if name == "own_at":
            further = further + np.array([steps, 0])
        elif name in INDEXED.values():
            further = further + steps
        joined[name] = np.concatenate([own, further])
    return Rows(**joined)
