"""Learning rates: whether the one in use explains a loss that rises, or is itself what is wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from gradwatch_server.core.alerting.baselines.running import PEAK_FRAMES

NEW_FRAMES: Final = 128
"""For so many frames a rate is new."""

COMPARED_FRAMES: Final = PEAK_FRAMES + 16
"""Rates of so many frames are to be alike: those of which a level is the largest."""

MIN_OLDER: Final = 64
"""Frames older than that before a rate can be called unheard of: a linear warm-up less than
quadruples in 128 frames from then on."""

ROSE: Final = 1.5
"""Times the smallest of late, above which the rate has risen."""

UNHEARD_OF: Final = 4.0
"""Times the largest before, above which no schedule leads: people go up by two or three."""


class RateChange(Enum):
    """What the learning rate did of late."""

    NONE = "none"
    """It was held, or it fell."""
    ROSE = "rose"
    """It rose as schedules do: a warm-up, a restart, a step by hand."""
    UNHEARD_OF = "unheard of"
    """It is far above all that this training ever had."""


class Rates:
    """The learning rates of an attempt: those of the last frames, and the largest before."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=COMPARED_FRAMES)
        self._new: deque[float] = deque(maxlen=NEW_FRAMES)
        self._num_older = 0
        self._largest_older = 0.0

    def add(self, lr: float | None) -> None:
        """Take in the rate of a frame, None or zero if it says nothing."""
        if lr is None or not lr > 0.0:
            return
        if len(self._new) == NEW_FRAMES:
            self._num_older += 1
            self._largest_older = max(self._largest_older, self._new[0])
        self._new.append(lr)
        self._recent.append(lr)

    def change(self, lr: float | None) -> RateChange:
        """Return what the rate of a frame, not yet added, is beside those of the last frames."""
        rate = self._recent[-1] if (lr is None or not lr > 0.0) and self._recent else lr
        if rate is None or not self._recent:
            return RateChange.NONE
        if self._num_older >= MIN_OLDER and rate > UNHEARD_OF * self._largest_older:
            return RateChange.UNHEARD_OF
        return RateChange.ROSE if rate > ROSE * min(self._recent) else RateChange.NONE

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {
            "recent": list(self._recent),
            "num_older": self._num_older,
            "largest_older": self._largest_older,
        }

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self._recent = deque(plain["recent"], maxlen=COMPARED_FRAMES)
        self._new = deque(plain["recent"][-NEW_FRAMES:], maxlen=NEW_FRAMES)
        self._num_older, self._largest_older = plain["num_older"], plain["largest_older"]
