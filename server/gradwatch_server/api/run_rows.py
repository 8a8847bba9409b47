"""Rows of the table of runs: which of them, in which order, and the small curve of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from gradwatch_server.core.views.snapshot import RunView
from gradwatch_wire.health import Phase, Status

if TYPE_CHECKING:
    from gradwatch_server.api.listing import Summary

Order = Literal["heard", "worst", "name", "step"]

_STATUSES: Final = list(Status)


def _badness(own: Summary) -> tuple[Any, ...]:
    return own.has_ended, -_STATUSES.index(own.status), -own.key[0], own.key[1]


_KEYS: Final[Mapping[Order, Callable[[Summary], tuple[Any, ...]]]] = {
    "heard": lambda own: (-own.key[0], own.key[1]),
    "worst": _badness,
    "name": lambda own: (own.key[1],),
    "step": lambda own: (-own.step, own.key[1]),
}
"""By what they come, the least first; each run has a key of its own."""

KEY_TYPES: Final[Mapping[Order, tuple[type, ...]]] = {
    "heard": (int, str),
    "worst": (bool, int, int, str),
    "name": (str,),
    "step": (int, str),
}
"""Of what the key of each order consists."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which runs are wanted.

    Args:
        q: Text that the name has in it, upper and lower case alike; None for all.
        status: The status; None for all.
        phase: The phase; None for all.
        sort: The order.
    """

    q: str | None = None
    status: Status | None = None
    phase: Phase | None = None
    sort: Order = "heard"

    def of(self, runs: Sequence[Summary]) -> tuple[Summary, ...]:
        """Return those of the runs, in order."""
        text = None if self.q is None else self.q.casefold()
        found = [
            own
            for own in runs
            if (text is None or text in own.key[1].casefold())
            and self.status in (None, own.status)
            and self.phase in (None, own.phase)
        ]
        return tuple(sorted(found, key=self.key))

    def key(self, own: Summary) -> tuple[Any, ...]:
        """Return by what a run comes."""
        return _KEYS[self.sort](own)


def describe_row(
    view: RunView, encoded: bytes, firing: Mapping[str, int], spark: int
) -> dict[str, Any]:
    """Return a run in short with its small curve.

    Args:
        view: The run.
        encoded: The row of `/runs` without the curve, JSON.
        firing: Severity to the number of alerts that fire.
        spark: Values of the curve at most.
    """
    row: dict[str, Any] = json.loads(encoded)
    return row | {
        "step_time_s": None if view.frame is None else view.frame.step_time_s,
        "live_attempts": sum(each.is_live for each in (view, *view.others)),
        "alerts": dict(firing),
        "spark": small_curve(view, spark),
    }


def small_curve(view: RunView, most: int) -> list[float | None]:
    """Return the gradient norm over the window in *most* values; no maximum and no NaN is lost.

    Each stands for as many steps as the next, but the first, which may stand for fewer: its
    largest, NaN or Inf if there was one; null where nothing was known.
    """
    norms = np.where(view.series.known, view.series.total_norm, np.nan)
    bad = view.series.known & ~np.isfinite(view.series.total_norm)
    size = -(-len(norms) // most) if len(norms) else 1
    found: list[float | None] = []
    for end in range(len(norms), 0, -size):
        own = slice(max(end - size, 0), end)
        values = norms[own][~np.isnan(norms[own])]
        if bad[own].any():
            is_nan = np.isnan(norms[own][bad[own]]).any()
            found.append(float("nan") if is_nan else float("inf"))
        else:
            found.append(float(values.max()) if len(values) else None)
    return found[::-1]
