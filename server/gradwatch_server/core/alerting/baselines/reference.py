"""References: what was usual of each series when it left it, for as long as it stays away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gradwatch_server.core.alerting.baselines.judgement import Judgement
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.packing import pack, unpack

MAX_AWAY_FRAMES: Final = 256
"""A series that is away this long has a new level, which its running statistics know by then."""


class Reference:
    """The usual values by which it is told whether a series is back.

    The running statistics learn a lasting change within some tens of frames, and would then call it
    usual: they say when something begins, not when it is over.
    """

    def __init__(self) -> None:
        self._usual = np.zeros(0)  # NaN of a series that is not away
        self._frames: IndexArray = np.zeros(0, dtype=np.int64)
        self._any_away = False

    @property
    def any_away(self) -> bool:
        """Whether any series is away."""
        return self._any_away

    def follow(
        self, judgement: Judgement, left: BoolArray, back: float, usual: FloatArray | None = None
    ) -> BoolArray:
        """Take in a frame; return (series,) which are away.

        Args:
            judgement: The frame.
            left: (series,) which are beyond the limit at which they are called away.
            back: Distance from the usual value at or below which they are back; negative where a
                fall was judged, and then at or above which.
            usual: (series,) what those that leave now come from, if it is not the mean.
        """
        self.fit(len(left))
        if not self._any_away and not np.count_nonzero(left):  # nearly always
            return left
        came_from = judgement.mean if usual is None else usual
        self._usual = np.where(np.isnan(self._usual) & left, came_from, self._usual)
        rise = self.rise(judgement)
        returned = rise <= back if back > 0 else rise >= back
        self._frames = np.where(np.isnan(self._usual), 0, self._frames + 1)
        returned |= self._frames > MAX_AWAY_FRAMES
        self._usual[returned & ~left] = np.nan
        away: BoolArray = ~np.isnan(self._usual)
        self._any_away = bool(np.count_nonzero(away))
        return away

    def rise(self, judgement: Judgement) -> FloatArray:
        """Return (series,) how far each is above its reference, NaN without one."""
        self.fit(len(judgement.samples))  # it may not have followed any frame yet
        return judgement.samples - self._usual

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {"usual": pack(self._usual), "frames": pack(self._frames)}

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self._usual = np.array(unpack(plain["usual"]), dtype=np.float64)
        self._frames = np.array(unpack(plain["frames"]), dtype=np.int64)
        self._any_away = not np.isnan(self._usual).all()

    def fit(self, number: int) -> None:
        """Make room for *number* series."""
        more = number - len(self._usual)
        if more > 0:
            self._usual = np.append(self._usual, np.full(more, np.nan))
            self._frames = np.append(self._frames, np.zeros(more, dtype=np.int64))
