"""Alerts as readers got them, compared with those of a single process; and how long none came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, TypeAlias

Key: TypeAlias = tuple[str, str]
"""Id of an alert and whether it fires or is resolved: what is told exactly once."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """An alert event that reached a reader.

    Args:
        cursor: Its place in the stream.
        key: Which alert it is, and its state.
        rule: What raised it.
        run: The run that it is about.
        is_news: Whether it tells of a firing alert what was not told before: there may be several.
        arrived_s: When, by `time.monotonic`.
    """

    cursor: int
    key: Key
    rule: str
    run: str
    is_news: bool
    arrived_s: float

    @classmethod
    def of(cls, event: dict[str, Any], arrived_s: float) -> Self:
        """Return the arrival of an event as the API tells it."""
        return cls(
            cursor=event["cursor"],
            key=(event["id"], event["state"]),
            rule=event["rule"],
            run=event["run"],
            is_news=event["update"] is not None,
            arrived_s=arrived_s,
        )


@dataclass(frozen=True, slots=True)
class Differences:
    """How what one reader got differs from what there was to be told.

    Args:
        expected: How many alerts were to fire or to be resolved.
        missing: Those of them that did not come.
        doubled: What came more than once.
        other: Those that came and were not to.
    """

    expected: int
    missing: tuple[Key, ...] = ()
    doubled: tuple[Key, ...] = ()
    other: tuple[Key, ...] = ()


def compare(expected: Iterable[Arrival], got: Iterable[Arrival]) -> Differences:
    """Return how what a reader *got* differs from what a single process told.

    An event that came twice under one cursor is as much a double as one alert told under two.
    """
    wanted = set(_told(expected))
    counts = Counter(_told(got))
    return Differences(
        expected=len(wanted),
        missing=tuple(sorted(wanted - counts.keys())),
        doubled=tuple(sorted(key for key, count in counts.items() if count > 1)),
        other=tuple(sorted(counts.keys() - wanted)),
    )


def _told(arrivals: Iterable[Arrival]) -> list[Key]:
    return [own.key for own in arrivals if not own.is_news]


def longest_pause(times_s: Sequence[float], begin_s: float, end_s: float) -> float:
    """Return the longest time between two neighbours of *times_s* that touches a window, seconds.

    Args:
        times_s: When something came, ascending.
        begin_s: Begin of the window: the pause that is under way then counts in full.
        end_s: End of the window. If nothing came after it, a pause lasts at least until then.
    """
    if not times_s or times_s[-1] < end_s:
        times_s = [*times_s, end_s]
    if times_s[0] > begin_s:
        times_s = [begin_s, *times_s]
    touching = [b - a for a, b in pairwise(times_s) if a < end_s and b > begin_s]
    return max(touching, default=0.0)


def longest_silence(
    arrivals: Iterable[Arrival], runs: Iterable[str], begin_s: float, end_s: float, pace_s: float
) -> float:
    """Return the longest time that a reader heard of no alert of a run, beyond its pace, seconds.

    Args:
        arrivals: What the reader got.
        runs: Those that raise an alert every *pace_s*; each of them is looked at by itself.
        begin_s: Begin of the window, as in `longest_pause`.
        end_s: Its end.
        pace_s: Time between two alerts of a run when nothing fails.
    """
    times_s: dict[str, list[float]] = {run: [] for run in runs}
    for own in arrivals:
        if own.run in times_s and own.key[1] == "firing" and not own.is_news:
            times_s[own.run].append(own.arrived_s)
    longest = max(longest_pause(own, begin_s, end_s) for own in times_s.values())
    return max(longest - pace_s, 0.0)
