"""Visits: series that were far from what is usual of them, and came back soon, again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gradwatch_server.core.alerting.baselines.judgement import Judgement
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, grown
from gradwatch_server.core.packing import pack, unpack

VISIT_FRAMES: Final = 16
"""What stays away longer is no visit."""

REMEMBERED_FRAMES: Final = 1_024
"""Frames without a visit after which those before are forgotten."""

MIN_VISITS: Final = 2

LN_MORE: Final = 0.4054651081083829
"""ln 1.5: by so much a visit may go beyond those before."""


class Visits:
    """How often each series was far off and came back soon, and how far it was.

    Copies of a target network, an evaluation inside the loss, a short last batch: what came and
    went twice will come again, and is nobody's fault.
    """

    def __init__(self) -> None:
        self._count: IndexArray = np.zeros(0, dtype=np.int64)
        self._highest: FloatArray = np.zeros(0)
        self._current: FloatArray = np.zeros(0)
        self._away: IndexArray = np.zeros(0, dtype=np.int64)  # frames
        self._since: IndexArray = np.zeros(0, dtype=np.int64)  # frames since the last visit

    def follow(self, judgement: Judgement, away: BoolArray) -> BoolArray:
        """Take in a frame; return (series,) which are no farther off than twice before.

        Args:
            judgement: The frame.
            away: (series,) which are far off and not back yet.
        """
        self._fit(len(away))
        if not (away.any() or self._away.any() or self._count.any()):
            return away
        samples = np.nan_to_num(judgement.samples, nan=-np.inf, neginf=-np.inf)
        self._end(~away & (self._away > 0))
        self._away = np.where(away, self._away + 1, 0)
        self._current = np.where(away, np.maximum(self._current, samples), -np.inf)
        known = (self._away <= VISIT_FRAMES) & (self._count >= MIN_VISITS)
        return known & (samples <= self._highest + LN_MORE)

    def rest(self, number: int) -> None:
        """Take in a frame in which none of *number* series is far off."""
        self._fit(number)
        if np.count_nonzero(self._away) or np.count_nonzero(self._count):
            self._end(self._away > 0)
            self._away = np.zeros_like(self._away)
            self._current = np.full(number, -np.inf)

    @property
    def is_empty(self) -> bool:
        """Whether no series is far off, and no visit is remembered."""
        return not (np.count_nonzero(self._away) or np.count_nonzero(self._count))

    def _end(self, came_back: BoolArray) -> None:
        soon = came_back & (self._away <= VISIT_FRAMES)
        self._highest[soon] = np.maximum(self._highest, self._current)[soon]
        self._count[soon] += 1
        self._since = np.where(came_back, 0, self._since + 1)
        forgotten = self._since > REMEMBERED_FRAMES
        self._count[forgotten], self._highest[forgotten] = 0, -np.inf

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {name: pack(array) for name, array in vars(self).items()}

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        for name, array in list(vars(self).items()):
            setattr(self, name, np.array(unpack(plain[name]), dtype=array.dtype))

    def _fit(self, number: int) -> None:
        self._count = grown(self._count, number, 0)
        self._highest = grown(self._highest, number, -np.inf)
        self._current = grown(self._current, number, -np.inf)
        self._away = grown(self._away, number, 0)
        self._since = grown(self._since, number, 0)
