"""Checkpoints: the state as it was at a place of the log, so that a restart applies only the rest.

Each run is saved by itself: a busy one often, a quiet one never. A save also says how far each
run is, so that the saved runs and their positions always belong together.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.run import Run
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_server.storage.store import RunSave, SavedRun, SavedState, StorageError

logger = logging.getLogger(__name__)

_POSITION: Final = "position"
_FORGOTTEN: Final = "forgotten"

PARTS: Final = (_POSITION, _FORGOTTEN)
"""The parts of the saved state that are of no run."""

SALVAGED: Final = "salvaged"
"""A part that says, if it is not empty, that all the rest was read from a damaged store: what is
saved may lack runs."""

SIZES: Final = "sizes"
"""A part in which retention keeps what takes how much room."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the log the saved runs stand.

    Args:
        offset: The newest entry at the time of the save.
        rules: The rules in force at `start`, plain.
        silences: Those in force there, plain.
        budgets: Those that the core kept to there, plain.
        behind: Run to the newest entry that its saved form has, of those that lack some; 0 for one
            that is not saved at all. All others are at `offset`.
    """

    offset: int = 0
    rules: Mapping[str, Any] = field(default_factory=dict)
    behind: Mapping[str, int] = field(default_factory=dict)
    silences: Sequence[Mapping[str, Any]] = ()
    budgets: Mapping[str, Any] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """The newest entry of which nothing is needed any more, nor of those before."""
        return min([self.offset, *self.behind.values()])


@dataclass(slots=True)
class Checkpoint:
    """What was found.

    Args:
        position: Where in the log it stands.
        forgotten: As `State.forgotten`.
        runs: The runs.
        damaged: Names of the runs that cannot be read.
    """

    position: Position = field(default_factory=Position)
    forgotten: dict[str, int] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be saved of one run.

    Args:
        run: The run.
        attempts: Those of its attempts that changed.
        whole: Whether what is there of the run is to be replaced altogether.
    """

    run: Run
    attempts: Sequence[Attempt]
    whole: bool


def load_checkpoint(saved: SavedState, window_steps: int) -> Checkpoint:
    """Return what is saved and good; each run that is not is named in `damaged`.

    Raises:
        StorageError: If the store cannot be read.
    """
    try:
        position, forgotten = saved.part(_POSITION), saved.part(_FORGOTTEN)
        found = Checkpoint()
        if forgotten is not None:
            found.forgotten = decode(forgotten, dict[str, int])
        if position is None:
            return found
        found.position = decode(position, Position)
    except ValueError as error:
        logger.warning("no checkpoint can be used, the log is read instead: %s", error)
        return Checkpoint()
    for name in saved.runs():
        try:
            found.runs[name] = _load_run(saved.run(name), window_steps)
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not what was written
            logger.warning("the checkpoint of run %s cannot be used: %r", name, error)
            found.damaged.append(name)
    return found


def _load_run(saved: SavedRun, window_steps: int) -> Run:
    run = decode(saved.body, Run)
    for body in saved.attempts.values():
        attempt = decode(body, Attempt)
        if not attempt.retired and attempt.window.capacity != window_steps:
            attempt.resize_window(window_steps)
        run.adopt(attempt)
    if not run.attempts:
        msg = "no attempt is saved"
        raise ValueError(msg)
    return run


def encode_position(position: Position) -> dict[str, bytes]:
    """Return the part of the saved state that says how far the saved runs are."""
    return {_POSITION: encode(position)}


def encode_forgotten(forgotten: Mapping[str, int]) -> dict[str, bytes]:
    """Return the part of the saved state that has the names of runs that left memory."""
    return {_FORGOTTEN: encode(dict(forgotten))}


def encode_change(change: Change) -> RunSave:
    """Return what is to be saved of a run that changed."""
    run = change.run
    return RunSave(
        run=run.name,
        body=encode(run),
        whole=change.whole,
        attempts={own.number: encode(own) for own in change.attempts},
        first_attempt=run.attempts[0].number,
    )
