"""Ranks of which nothing is heard, or that fall behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Limit, Steps
from gradwatch_server.core.alerting.rules.rank import RankRule
from gradwatch_server.core.liveness import LOGGED_AFTER_S, Liveness, RankLiveness


class RankSilentRule(RankRule):
    """A rank that gives no sign of life, or that falls behind the others.

    A rank that trains says every 2 s that it lives. It falls behind if frames close without it that
    are two steps or more ahead of it. It is about the run: its alert has the group `ranks` and no
    layers. It is resolved when all of them are heard of again and have caught up, and when they
    have ended or are lost. It fires up to 10 s later than it says: not every sign of life is
    logged.
    """

    name = "rank_silent"
    follows = ("rank_lost", "run_failed")
    formula = """
        `since the last sign of life >= after_s`, or `behind_frames` frames in a row that closed
        two steps or more ahead of the rank.
    """
    tuning = "Raise `after_s` where the network is away for longer; signs of life come every 2 s."
    source = "Three beats of 2 s, and some: NVRx and torchft watch beats for restarts likewise."

    after_s: Limit = Field(
        10.0, description="Seconds without any sign of life after which a rank is silent."
    )
    behind_frames: Steps = Field(
        8, description="Frames in a row, two steps or more ahead of a rank, that leave it behind."
    )

    def affected(self, observation: Liveness) -> Sequence[RankLiveness]:
        """Return the ranks that are silent or behind."""
        after_s = self.after_s + LOGGED_AFTER_S
        return [
            rank
            for rank in observation.ranks
            if rank.lives and (rank.silent_s > after_s or rank.behind_frames >= self.behind_frames)
        ]

    def value(self, affected: Sequence[RankLiveness]) -> float:
        """Return the longest silence in seconds."""
        return max((rank.silent_s for rank in affected), default=0.0)

    def origin(self, affected: Sequence[RankLiveness], observation: Liveness) -> Origin:
        """Return which ranks it is, and how far the others are."""
        found = super().origin(affected, observation)
        return replace(found, detail=f"others: {max(rank.step for rank in observation.ranks)}")

    def limit(self) -> float:
        """Return after how many seconds a rank is silent."""
        return self.after_s
