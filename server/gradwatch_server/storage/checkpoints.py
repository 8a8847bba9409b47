"""Checkpoints: the state as it was at a place of the log, so that a restart applies only the rest.

Each run is saved by itself: a busy one often, a quiet one never. A save also says how far each
run is, so that the saved runs and their positions always belong together. What is saved is
msgpack with a checksum; `state_dict` of runs and attempts says what is in it.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.frames.chunked_rows import NEWEST_CHUNKS, Source
from gradwatch_server.core.frames.window import Chunk
from gradwatch_server.core.packing import pack, unpack
from gradwatch_server.core.run import Run
from gradwatch_server.storage.store import RunSave, SavedChunk, SavedRun, SavedState, StorageError

logger = logging.getLogger(__name__)

_CHECKSUM_BYTES: Final = 4

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
        resized: Names of those whose window has another size than it is saved in.
    """

    position: Position = field(default_factory=Position)
    forgotten: dict[str, int] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    resized: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be saved of one run.

    Args:
        run: The run.
        attempts: Those of its attempts that changed.
        since: Attempt to how many frames its window had when it was last saved, 0 if not there.
        whole: Whether what is there of the run is to be replaced altogether.
    """

    run: Run
    attempts: Sequence[Attempt]
    since: Mapping[int, int]
    whole: bool


class DamagedError(Exception):
    """What is saved is not what was written."""


def load_checkpoint(saved: SavedState, window_steps: int) -> Checkpoint:
    """Return what is saved and good; each run that is not is named in `damaged`.

    Most of what the windows hold is left to `fill_window`.

    Raises:
        StorageError: If the store cannot be read.
    """
    try:
        position = _load_part(saved, _POSITION)
        forgotten = dict(_load_part(saved, _FORGOTTEN) or {})
        found = Checkpoint(forgotten=forgotten)
        if position is None:
            return found
        found.position = _position_of(position)
    except (DamagedError, TypeError, ValueError) as error:
        logger.warning("no checkpoint can be used, the log is read instead: %s", error)
        return Checkpoint()
    for name in saved.runs():
        try:
            run = _load_run(name, saved.run(name))
            if _fit_window(saved, run, window_steps):
                found.resized.add(name)
            found.runs[name] = run
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not what was written
            logger.warning("the checkpoint of run %s cannot be used: %r", name, error)
            found.damaged.append(name)
    return found


def _position_of(plain: Any) -> Position:
    """Return what was saved as a position.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(plain, dict):
        msg = f"a position is a map, and not {type(plain).__name__}"
        raise ValueError(msg)
    return Position(**plain)


def _load_part(saved: SavedState, name: str) -> Any:
    body = saved.part(name)
    return None if body is None else _decode(body)


def _load_run(name: str, saved: SavedRun) -> Run:
    run = Run.from_state_dict(name, _decode(saved.body))
    for number, body in saved.attempts.items():
        steps = [(chunk, unpack(_decode(own))) for chunk, own in saved.steps.get(number, ())]
        state = _decode(body)
        # Of one that is retired, what was saved of its window before may be there still.
        run.adopt(Attempt.from_state_dict(name, state, () if state["retired"] else steps))
    if not run.attempts:
        msg = "no attempt is saved"
        raise DamagedError(msg)
    return run


def _fit_window(saved: SavedState, run: Run, window_steps: int) -> bool:
    """Read at once what alerts of a run that lives tell of; tell whether a window was resized."""
    resized = False
    for attempt in run.judged:
        window = attempt.window
        window.keep_with(source_of(saved, attempt))
        if window.capacity != window_steps:
            fill_window(saved, attempt, window.absent())
            attempt.resize_window(window_steps)
            resized = True
        elif attempt.lives:
            fill_window(saved, attempt, window.absent()[:NEWEST_CHUNKS])
    return resized


def fill_window(saved: SavedState, attempt: Attempt, chunks: Collection[int]) -> None:
    """Fill in chunks of an attempt's window. One that is damaged is empty, and logged.

    Raises:
        StorageError: If the store cannot be read.
    """
    for number in chunks:
        columns = _load_columns(saved, attempt.run, attempt.number, number)
        try:
            attempt.window.fill(number, columns)
        except ValueError as error:
            _tell_lost(attempt.run, number, error)
            attempt.window.fill(number)


def source_of(saved: SavedState, attempt: Attempt) -> Source:
    """Return what reads chunks of an attempt's window while a rule looks at them."""
    run, attempt_number = attempt.run, attempt.number

    def read(number: int) -> Sequence[FloatArray] | None:
        try:
            return _load_columns(saved, run, attempt_number, number)
        except StorageError as error:  # it costs what an alert tells, not the record
            logger.warning("frames of run %s cannot be read: %s", run, error)
            return None

    return read


def _load_columns(saved: SavedState, run: str, attempt: int, number: int) -> Sequence[FloatArray]:
    """Return the columns of a chunk, none if it is damaged, which is logged."""
    body = saved.columns(run, attempt, number)
    try:
        if body is None:
            msg = "it is missing"
            raise DamagedError(msg)
        return [unpack(column) for column in _decode(body)]
    except (DamagedError, ValueError, TypeError) as error:
        _tell_lost(run, number, error)
        return ()


def _tell_lost(run: str, number: int, error: Exception) -> None:
    logger.warning("frames of run %s are lost, chunk %d: %s", run, number, error)


def encode_position(position: Position) -> dict[str, bytes]:
    """Return the part of the saved state that says how far the saved runs are."""
    plain = {"offset": position.offset, "rules": position.rules, "behind": position.behind}
    budgets = dict(position.budgets)
    return {_POSITION: _encode({**plain, "silences": [*position.silences], "budgets": budgets})}


def encode_forgotten(forgotten: Mapping[str, int]) -> dict[str, bytes]:
    """Return the part of the saved state that has the names of runs that left memory."""
    return {_FORGOTTEN: _encode(forgotten)}


def encode_change(change: Change) -> RunSave:
    """Return what is to be saved of a run that changed."""
    run = change.run
    return RunSave(
        run=run.name,
        body=_encode(run.state_dict()),
        whole=change.whole,
        attempts={own.number: _encode(own.state_dict()) for own in change.attempts},
        chunks=[
            _encode_chunk(own.number, number, own.window.chunk(number))
            for own in run.judged
            for number in own.window.changed(change.since.get(own.number, 0))
        ],
        first_attempt=run.attempts[0].number,
        first_chunk_attempt=min(own.number for own in (*run.judged, run.attempts[-1])),
    )


def _encode_chunk(attempt: int, number: int, chunk: Chunk) -> SavedChunk:
    columns = _encode([pack(column) for column in chunk.columns])
    return SavedChunk(attempt, number, _encode(pack(chunk.steps)), columns)


def _encode(plain: Any) -> bytes:
    body: bytes = msgpack.packb(plain)
    return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") + body


def _decode(saved: bytes) -> Any:
    """Return what was encoded.

    Raises:
        DamagedError: If it was something else.
    """
    body = memoryview(saved)[_CHECKSUM_BYTES:]
    if zlib.crc32(body) != int.from_bytes(saved[:_CHECKSUM_BYTES], "little"):
        msg = f"{len(saved)} bytes have another checksum"
        raise DamagedError(msg)
    return msgpack.unpackb(body, strict_map_key=False)
