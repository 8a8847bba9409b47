"""How often a run may begin an attempt: a token bucket for each. It knows no clock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from gradwatch_wire import Hello

Launch: TypeAlias = tuple[str, str, int]
"""Run, job and world: ranks that say the same are of one attempt, each once."""

_MINUTE_NS = 60_000_000_000


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_ns: int
    is_told: bool = False


@dataclass(slots=True)
class _Joined:
    """The ranks that joined the newest attempt of a launch in this round."""

    is_new: bool
    ranks: set[int] = field(default_factory=set)


class AttemptRate:
    """Gives each run so many attempts at once, and as many a minute for ever."""

    def __init__(self, per_min: int) -> None:
        self._per_min = per_min
        self._buckets: dict[str, _Bucket] = {}
        self._joined: dict[Launch, _Joined] = {}

    def begins(self, hello: Hello, *, is_found: bool) -> bool:
        """Tell whether a HELLO begins an attempt.

        Args:
            hello: What a new session says.
            is_found: Whether the state has an attempt for it. It has nothing of this round yet.
        """
        joined = self._joined.get(_launch(hello))
        if joined is None:
            return not is_found
        return hello.rank in joined.ranks or not (joined.is_new or is_found)

    def join(self, hello: Hello) -> None:
        """Note that a session joins an attempt."""
        self._joined.setdefault(_launch(hello), _Joined(is_new=False)).ranks.add(hello.rank)

    def begin(self, hello: Hello, now_ns: int) -> bool:
        """Count an attempt; return False if it has to wait."""
        bucket = self._buckets.setdefault(hello.run, _Bucket(self._per_min, now_ns))
        passed = max(0, now_ns - bucket.at_ns) / _MINUTE_NS
        bucket.tokens = min(self._per_min, bucket.tokens + passed * self._per_min)
        bucket.at_ns = now_ns
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        self._joined[_launch(hello)] = _Joined(is_new=True, ranks={hello.rank})
        return True

    def is_first_told(self, run: str) -> bool:
        """Tell whether this is asked for the first time of a run that had to wait."""
        bucket = self._buckets.get(run)
        if bucket is None or bucket.is_told:
            return False
        bucket.is_told = True
        return True

    def next_round(self, runs: Collection[str]) -> None:
        """Forget who joined in the last round, which the state has now, and runs that are gone."""
        self._joined.clear()
        if len(self._buckets) > len(runs):
            self._buckets = {run: own for run, own in self._buckets.items() if run in runs}


def _launch(hello: Hello) -> Launch:
    return hello.run, hello.job, hello.world
