"""The part of the set that is committed, for the test that holds a floor."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.store import SUFFIX, Collection, write

DIRECTORY: Final = Path(__file__).resolve().parents[2] / "tests/benchmarks/recorded"
RUNS: Final = 40
MAX_BYTES: Final = 10_000_000


def choose(directory: Path) -> list[str]:
    """Return the names of the runs: the smallest run of each family, and forks of it.

    Each fault is there once before any is twice, as far as the number of runs allows.
    """
    names = Collection(directory).names
    sizes = {name: (directory / f"{name}{SUFFIX}").stat().st_size for name in names}
    parents: dict[str, str] = {}
    for name in sorted((name for name in names if "+" not in name), key=sizes.__getitem__):
        has_forks = any(other.startswith(f"{name}+") for other in names)
        if has_forks and not name.startswith("gloo_"):
            parents.setdefault(name.rpartition("-")[0], name)
    chosen: list[str] = []
    faults: list[str] = []
    for parent in sorted(parents.values()):
        forks = [name for name in names if name.startswith(f"{parent}+")]
        forks.sort(key=lambda name: (faults.count(name.partition("+")[2]), sizes[name]))
        if len(chosen) + 2 > RUNS:
            break
        chosen += [parent, forks[0]]
        faults.append(forks[0].partition("+")[2])
    return chosen


def pack(directory: Path) -> None:
    """Write the part anew from a whole set.

    Args:
        directory: Of the whole set.

    Raises:
        ValueError: If the part is larger than `MAX_BYTES`.
    """
    runs = Collection(directory)
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for old in DIRECTORY.glob(f"*{SUFFIX}"):
        old.unlink()
    total = 0
    for name in choose(directory):
        recorded = runs.read_own(name)
        path = write(DIRECTORY, dataclasses.replace(recorded, rows=_short(recorded.rows)))
        total += path.stat().st_size
    if total > MAX_BYTES:
        msg = f"{DIRECTORY}: {total} bytes, allowed are {MAX_BYTES}"
        raise ValueError(msg)


def _short(rows: Rows) -> Rows:
    """Return rows as float32 where that keeps finite finite and other than zero so."""
    shorter = {}
    for each in dataclasses.fields(rows):
        values = getattr(rows, each.name)
        if values.dtype == np.float64 and each.name not in ("seconds", "weights", "updates"):
            with np.errstate(over="ignore"):
                short = values.astype(np.float32)
            same = (np.isfinite(short) == np.isfinite(values)).all()
            if same and ((short == 0) == (values == 0)).all():
                values = short
        shorter[each.name] = values
    return Rows(**shorter)
