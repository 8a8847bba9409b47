"""Writes what is in an archive of a run into a store that has nothing yet.

An archive comes from somebody else: all of it is checked before it is written, and nothing of it
names a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from gradwatch_server.core.entries import (
    Acknowledged,
    Beats,
    Entry,
    FramesClosed,
    Gap,
    Imported,
    Lost,
    ManifestsDropped,
    Opened,
    Received,
    Resumed,
    Tick,
)
from gradwatch_server.core.frames.window import WINDOW_STEPS
from gradwatch_server.storage.archive_frames import VERSION, BadArchiveError, FrameKind
from gradwatch_server.storage.checkpoints import Position, encode_position, load_checkpoint
from gradwatch_server.storage.encoding import EncodedEntry, decode_entry
from gradwatch_server.storage.series_store import ChunkFacts, SavedSeriesChunk
from gradwatch_server.storage.store import Line, NewAlertEvent, RunSave, SavedChunk, Store
from gradwatch_wire.limits import MAX_NAME_BYTES

MAX_INTEGER: Final = 1 << 62

Frame = tuple[FrameKind, list[Any]]


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """What was imported.

    Args:
        run: Name of the run.
        attempts: Its attempts.
        entries: Entries of its log.
        alert_events: Its alert events.
    """

    run: str
    attempts: tuple[int, ...]
    entries: int
    alert_events: int


@dataclass(slots=True)
class ArchiveImport:
    """Takes in frames, in their order.

    Args:
        store: Where they go.
    """

    store: Store
    _run: str = ""
    _body: bytes = b""
    _attempts: tuple[int, ...] = ()
    _sessions: set[bytes] = field(default_factory=set)
    _offset: int = 0
    _num_frames: int = 0
    _num_entries: int = 0
    _num_events: int = 0
    _is_complete: bool = False

    def add_all(self, frames: Iterable[Frame], now_ns: int) -> ImportedRun:
        """Take in a whole archive.

        Args:
            frames: Kind and fields of each frame.
            now_ns: The time it is, nanoseconds since the epoch.

        Raises:
            BadArchiveError: If it is not what was written, or of a newer version.
            StorageError: If the store cannot be written.
        """
        for kind, fields in frames:
            try:
                self._add(kind, fields)
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                msg = f"its frame {self._num_frames} ({kind}) is not what was written: {error}"
                raise BadArchiveError(msg) from error
            self._num_frames += kind not in (FrameKind.NEXT, FrameKind.END)
        if not self._is_complete:
            msg = "it was cut off: its end is missing"
            raise BadArchiveError(msg)
        return self._finish(now_ns)

    def _add(self, kind: FrameKind, fields: list[Any]) -> None:
        if self._is_complete or (not self._run and kind is not FrameKind.MANIFEST):
            msg = "it is out of place"
            raise ValueError(msg)
        add: dict[FrameKind, Callable[..., None]] = {
            FrameKind.MANIFEST: self._manifest,
            FrameKind.RUN: self._whole_run,
            FrameKind.ATTEMPT: self._attempt,
            FrameKind.WINDOW: self._window,
            FrameKind.LAYERS: self._layers,
            FrameKind.CURVES: self._curves,
            FrameKind.ALERTS: self._alerts,
            FrameKind.LOG: self._log,
            FrameKind.NEXT: lambda *_: None,
            FrameKind.END: self._end,
        }
        add[kind](*fields)

    def _manifest(self, facts: dict[str, Any]) -> None:
        if facts["version"] > VERSION:
            msg = (
                f"it is of version {facts['version']}, written by gradwatch {facts['gradwatch']}, "
                f"and this gradwatch reads up to {VERSION}; import it with that one"
            )
            raise BadArchiveError(msg)
        run = _text(facts["run"])
        if self._run or not 0 < len(run.encode()) <= MAX_NAME_BYTES:
            msg = "the name of the run"
            raise ValueError(msg)
        self._run = run
        self._attempts = tuple(_whole(own) for own in facts["attempts"])

    # The saved state

    def _whole_run(self, body: bytes) -> None:
        self._body = _bytes(body)
        self._save(whole=True)

    def _attempt(self, number: int, body: bytes) -> None:
        self._save(attempts={_whole(number): _bytes(body)})

    def _window(self, attempt: int, number: int, steps: bytes, columns: bytes) -> None:
        own = SavedChunk(_whole(attempt), _whole(number), _bytes(steps), _bytes(columns))
        self._save(chunks=[own])

    def _save(self, **what: Any) -> None:
        self.store.state.save({}, [RunSave(run=self._run, body=self._body, **what)])

    # Curves

    def _layers(self, attempt: int, layers: bytes) -> None:
        self.store.series.save(self._run, self._known(attempt), [], _bytes(layers))

    def _curves(self, attempt: int, facts: list[Any], head: bytes, tables: dict[str, Any]) -> None:
        level, number, epoch, first, last, entries, is_closed, upto = facts
        own = ChunkFacts(
            level=_whole(level),
            number=_whole(number),
            epoch=_whole(epoch),
            first_step=_whole(first),
            last_step=_whole(last),
            entries=_whole(entries),
            is_closed=bool(is_closed),
            upto=upto if upto == -1 else _whole(upto),
        )
        bodies = {_text(name): _bytes(body) for name, body in tables.items()}
        chunk = SavedSeriesChunk(own, _bytes(head), bodies)
        self.store.series.save(self._run, self._known(attempt), [chunk])

    def _known(self, attempt: int) -> int:
        if attempt not in self._attempts:
            msg = f"there is no attempt {attempt}"
            raise ValueError(msg)
        return attempt

    # Alerts, and the log

    def _alerts(self, rows: list[Any]) -> None:
        events = [
            NewAlertEvent(_text(alert_id), _text(change), self._run, _text(body))
            for alert_id, change, body in rows
        ]
        self.store.alert_events.add(events)
        self._num_events += len(events)

    def _log(self, rows: list[Any]) -> None:
        checked = [self._line(*row) for row in rows]
        # Places in the log are what curves point to, so that each entry keeps its own.
        for _, group in groupby(enumerate(checked), lambda item: item[1][0] - item[0]):
            own = [line for _, line in group]
            self.store.log.skip_to(own[0][0] - 1)
            self.store.log.append([line for _, line in own])
        self._num_entries += len(checked)

    def _line(self, offset: int, received_ns: int, kind: int, *rest: Any) -> tuple[int, Line]:
        if not self._offset < _whole(offset):
            msg = f"entry {offset} comes after {self._offset}"
            raise ValueError(msg)
        self._offset = offset
        session, payload = rest
        entry = _decoded(EncodedEntry(_whole(received_ns), _whole(kind), session, payload))
        if not self._is_own(entry):
            msg = f"entry {offset} is not of run {self._run}"
            raise ValueError(msg)
        return offset, Line(entry, payload)

    def _is_own(self, entry: Entry) -> bool:
        match entry.body:
            case Opened(session, hello):
                self._sessions.add(session)
                return hello.run == self._run
            case Received(envelope):
                return envelope.session in self._sessions
            case Gap(session) | Lost(session) | ManifestsDropped(session):
                return session in self._sessions
            case FramesClosed(run) | Acknowledged(run):
                return run == self._run
            case Beats(progress):
                return all(own.session in self._sessions for own in progress)
            case Tick() | Resumed():
                return True
        return False

    # The end

    def _end(self, num_frames: int) -> None:
        if num_frames != self._num_frames:
            msg = f"{num_frames} frames were written, {self._num_frames} are there"
            raise ValueError(msg)
        self._is_complete = True

    def _finish(self, now_ns: int) -> ImportedRun:
        last = self.store.log.last_offset
        self.store.state.save(encode_position(Position(last)), [])
        if [*load_checkpoint(self.store.state, WINDOW_STEPS).runs] != [self._run]:
            msg = "what it has of the state of the run cannot be read"
            raise BadArchiveError(msg)
        self.store.log.append([Line(Entry(now_ns, Imported(self._run)))])
        return ImportedRun(self._run, self._attempts, self._num_entries, self._num_events)


def _decoded(encoded: EncodedEntry) -> Entry:
    try:
        return decode_entry(encoded)
    except Exception as error:
        msg = f"an entry of the log cannot be read: {error}"
        raise ValueError(msg) from error


def _whole(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < MAX_INTEGER:
        msg = f"a whole number is expected, got {value!r:.40}"
        raise ValueError(msg)
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        msg = "bytes are expected"
        raise TypeError(msg)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        msg = "a text is expected"
        raise TypeError(msg)
    return value
