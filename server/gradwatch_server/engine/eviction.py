"""Eviction: which run, or which of its attempts, is the least useful. It only decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import takewhile

from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.entries import Forgotten
from gradwatch_server.core.run import Run
from gradwatch_server.core.state import State


class Usefulness(IntEnum):
    """Usefulness of a run, the least first. A run that lives and has frames is not in the list."""

    ENDED_EMPTY = 0
    """It ended, and not one record of it is stored."""

    EMPTY = 1
    """It lives, and not one record of it is stored."""

    ENDED_FRAMELESS = 2
    """It ended, and no frame of it has closed."""

    ENDED = 3
    """It ended; its frames can still be looked at."""

    FRAMELESS = 4
    """It lives and has sent something; perhaps it is about to begin."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Attempts of a run that may leave memory.

    Args:
        usefulness: What they are good for.
        run: Name of the run.
        attempts: They are all up to this number.
        heard_ns: The last sign of life of any of them, nanoseconds since the epoch.
        is_whole: Whether that is all of the run.
    """

    usefulness: Usefulness
    run: str
    attempts: int
    heard_ns: int
    is_whole: bool

    def forgotten(self) -> Forgotten:
        """Return the entry that lets them go."""
        return Forgotten(self.run, self.attempts)


def candidates(state: State, num_of_owner: Mapping[str, int]) -> list[Candidate]:
    """Return what may go, the least useful first.

    Among what is as useful, runs of the owner go first who has most, then what was not heard of for
    the longest time.

    Args:
        state: What there is.
        num_of_owner: Run to the number of runs that its owner has; 0 for others.
    """
    found = [own for run in state.runs.values() for own in _of(run)]
    return sorted(
        found, key=lambda own: (own.usefulness, -num_of_owner.get(own.run, 0), own.heard_ns)
    )


def num_over(run: Run) -> int:
    """Return how many of the oldest attempts may go, up to the first that lives."""
    return sum(1 for _ in takewhile(_is_over, run.attempts))


def outnumbered(run: Run, most: int) -> Forgotten | None:
    """Return the entry that lets the oldest attempts go if there are more than *most*."""
    over = list(takewhile(_is_over, run.attempts[: max(0, len(run.attempts) - most)]))
    return Forgotten(run.name, over[-1].number) if over else None


def _of(run: Run) -> Iterator[Candidate]:
    """Yield the run as a whole if it may go, and its oldest attempts, as far as they may."""
    attempts = run.attempts
    over = list(takewhile(_is_over, attempts))
    empty = list(takewhile(_is_empty, over))
    if empty and len(empty) < len(attempts):
        yield _candidate(Usefulness.ENDED_EMPTY, run, empty)
    if len(over) > len(empty) and len(over) < len(attempts):
        yield _candidate(Usefulness.ENDED, run, over)
    usefulness = _usefulness(run)
    if usefulness is not None:
        yield _candidate(usefulness, run, attempts)


def _usefulness(run: Run) -> Usefulness | None:
    """Return what a run is good for as a whole, None if it must not go."""
    attempts = run.attempts
    lives = any(own.lives for own in attempts)
    if all(map(_is_empty, attempts)):
        return Usefulness.EMPTY if lives else Usefulness.ENDED_EMPTY
    if any(own.num_frames for own in attempts):
        return None if lives else Usefulness.ENDED
    return Usefulness.FRAMELESS if lives else Usefulness.ENDED_FRAMELESS


def _candidate(usefulness: Usefulness, run: Run, attempts: Sequence[Attempt]) -> Candidate:
    return Candidate(
        usefulness,
        run.name,
        attempts[-1].number,
        max(own.signs.heard_ns for own in attempts),
        is_whole=len(attempts) == len(run.attempts),
    )


def _is_over(attempt: Attempt) -> bool:
    return not attempt.lives


def _is_empty(attempt: Attempt) -> bool:
    return not any(own.num_stored for own in attempt.sessions.values())
