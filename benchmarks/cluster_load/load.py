"""What is sent: so many runs of so many ranks, with so many layers, and how fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PROCESSES: Final = 4
"""Processes that send; each has an equal share of the sessions."""

MAX_SOCKETS: Final = 4_096
"""Connections of all of them: where there are more sessions, several share one."""


WARM: Final = 1
"""Steps of each rank that are sent before anything is counted: the first one makes room."""


@dataclass(frozen=True, slots=True)
class Load:
    """Records of one pass.

    Args:
        runs: Runs.
        ranks: Ranks of each; each is a session, with a socket of its own up to `MAX_SOCKETS`.
        steps: STATS records of each rank.
        layers: Layers in each record.
        rate: Records per second of all together; None for as fast as they are acknowledged.
        beats: Whether BEATs are sent in place of records: unnumbered, and not kept.
    """

    runs: int
    ranks: int
    steps: int
    layers: int
    rate: float | None = None
    beats: bool = False

    @classmethod
    def of(cls, runs: int, ranks: int, records: int, layers: int, rate: float | None) -> Load:
        """Return a load of about so many records in all."""
        return cls(runs, ranks, max(1, round(records / (runs * ranks))), layers, rate)

    @property
    def sessions(self) -> int:
        """Sessions of all runs."""
        return self.runs * self.ranks

    @property
    def records(self) -> int:
        """STATS records of all sessions."""
        return self.sessions * self.steps
