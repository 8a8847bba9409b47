"""Visits: times in which series were far from what is usual, and came back by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gradwatch_server.core.alerting.baselines.judgement import Judgement
from gradwatch_server.core.arrays import BoolArray, FloatArray, grown
from gradwatch_server.core.packing import pack, unpack

VISIT_FRAMES: Final = 32
"""What lasts longer is no visit; what is closer than this is one incident."""

REMEMBERED_FRAMES: Final = 1_024
"""Frames without a visit after which those before are forgotten."""

LN_MORE: Final = 0.6931471805599453
"""ln 2: by so much a visit may go beyond those before, as a norm may beyond its largest of late."""


class Visits:
    """How far each series went in the visits that are remembered.

    Copies of a target network, an evaluation inside the loss, a short last batch: what came and
    went by itself will come again. A visit begins with the first series that is far off and ends
    when all are back. It is one of all series: those that went along, not far enough to be told,
    may be the first to be told the next time.
    """

    def __init__(self) -> None:
        self._highest: FloatArray = np.zeros(0)  # of those remembered, -Inf without any
        self._current: FloatArray = np.zeros(0)  # of this one, and the frame before
        self._frames = 0  # of this one
        self._since = REMEMBERED_FRAMES  # frames since the last one

    def follow(self, judgement: Judgement, away: BoolArray) -> BoolArray:
        """Take in a frame; return (series,) which are hardly farther off than in a visit before.

        Args:
            judgement: The frame.
            away: (series,) which are far off and not back yet.
        """
        if not np.count_nonzero(away):
            self.rest(len(away))
            np.fmax(self._current, judgement.samples, out=self._current)  # one may begin with it
            return away
        self._fit(len(away))
        self._frames += 1
        np.fmax(self._current, judgement.samples, out=self._current)
        if self._frames > VISIT_FRAMES:
            return np.zeros_like(away)
        again: BoolArray = judgement.samples <= self._highest + LN_MORE
        return again

    def rest(self, number: int) -> None:
        """Take in a frame in which none of *number* series is far off."""
        self._fit(number)
        if 0 < self._frames <= VISIT_FRAMES:
            np.maximum(self._highest, self._current, out=self._highest)
            self._since = 0
        self._frames = 0
        self._current.fill(-np.inf)
        if self._since < REMEMBERED_FRAMES:
            self._since += 1
            if self._since == REMEMBERED_FRAMES:
                self._highest.fill(-np.inf)

    @property
    def is_empty(self) -> bool:
        """Whether no series is far off, and no visit is remembered."""
        return not self._frames and self._since >= REMEMBERED_FRAMES

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {
            "highest": pack(self._highest),
            "current": pack(self._current),
            "frames": self._frames,
            "since": self._since,
        }

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self._highest = np.array(unpack(plain["highest"]), dtype=np.float64)
        self._current = np.array(unpack(plain["current"]), dtype=np.float64)
        self._frames, self._since = plain["frames"], plain["since"]

    def _fit(self, number: int) -> None:
        self._highest = grown(self._highest, number, -np.inf)
        self._current = grown(self._current, number, -np.inf)
