"""Reads what a store has of one run, page by page, as frames of an archive.

Each page is read by itself, so that it can be asked for over HTTP, and again after an interruption.
Only a run that is over can be read: nothing of it changes meanwhile but what curves are made of,
which is read from the finest level on, so that what is trimmed meanwhile is in a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import astuple
from typing import Final

from gradwatch_server.core.entries import (
    Acknowledged,
    Beats,
    Entry,
    FramesClosed,
    Gap,
    Lost,
    ManifestsDropped,
    Opened,
    Received,
    Resumed,
    Tick,
)
from gradwatch_server.core.run import Run
from gradwatch_server.storage.archive_frames import VERSION, FrameKind, encode_frame
from gradwatch_server.storage.checkpoints import load_position, load_run
from gradwatch_server.storage.encoding import EncodedEntry, decode_entry, encode_entry
from gradwatch_server.storage.history import History
from gradwatch_server.storage.series_store import Track, height
from gradwatch_server.storage.store import Line, StorageError
from gradwatch_wire import __version__

MAX_PAGE_BYTES: Final = 4 << 20
"""A page ends with the frame that makes it larger than this."""

PAGE_ROWS: Final = 500
"""Entries of the log, or alert events, that are read at once."""

MAX_LOOKS: Final = 20
"""So many times that many entries are looked at for one page: most may be of other runs."""

AFTER_NS: Final = 600_000_000_000
"""Time after the run was last heard of up to which the log says how time passed."""

_READ_BYTES: Final = 16 << 20

_LEVELS: Final = sorted((level for track in Track for level in track.levels), key=height)


class NotSavedYetError(StorageError):
    """The saved state does not have all of the run yet; it will in a while."""


class _Section:
    STATE, WINDOWS, CURVES, ALERTS, LOG, END = range(6)


Cursor = tuple[int, int, int, int]
"""Where a page begins: the section, and three places in it."""

START: Final[Cursor] = (_Section.STATE, 0, 0, 0)

_Frames = Iterator[tuple[bytes, Cursor]]
"""Frames, each with where the next one begins; empty where only the place moves."""


class ArchivePages:
    """Pages of the archive of one run.

    Args:
        history: The store, which is only read.
        run: Name of the run.

    Raises:
        StorageError: If it cannot be read; `NotSavedYetError` where its end is not in it yet.
    """

    def __init__(self, history: History, run: str) -> None:
        self._history, self._run = history, run
        position = load_position(history.state)
        found = load_run(history.state, run)
        if (
            position is None
            or found is None
            or run in position.behind
            or any(own.lives for own in found.attempts)
        ):
            msg = f"not all of run {run} is saved yet; ask again in a minute (see checkpoint_s)"
            raise NotSavedYetError(msg)
        self._offset = position.offset
        self._found: Run = found

    def page(self, cursor: Cursor) -> tuple[bytes, Cursor | None]:
        """Return the frames from a cursor on, and that of the next page, None after the last."""
        frames: list[bytes] = []
        size = looks = 0
        for frame, after in self._frames(cursor):
            if frame:
                frames.append(frame)
                size += len(frame)
            looks += after[0] == _Section.LOG
            cursor = after
            if size > MAX_PAGE_BYTES or looks >= MAX_LOOKS:
                break
        return b"".join(frames), None if cursor[0] == _Section.END else cursor

    def _frames(self, cursor: Cursor) -> _Frames:
        sections: list[Callable[[int, int, int], _Frames]]
        sections = [self._state, self._windows, self._curves, self._alerts, self._log]
        for number, section in enumerate(sections[cursor[0] :], cursor[0]):
            _, *places = cursor if number == cursor[0] else START
            first, second, third = places
            yield from section(first, second, third)
            yield b"", (number + 1, 0, 0, 0)

    def _state(self, *_: int) -> _Frames:
        saved = self._history.state.run(self._run)
        facts = {
            "version": VERSION,
            "gradwatch": __version__,
            "run": self._run,
            "attempts": [*saved.attempts],
        }
        frames = [encode_frame(FrameKind.MANIFEST, facts), encode_frame(FrameKind.RUN, saved.body)]
        frames += [encode_frame(FrameKind.ATTEMPT, *own) for own in saved.attempts.items()]
        yield b"".join(frames), (_Section.WINDOWS, 0, 0, 0)

    def _windows(self, begin: int, *_: int) -> _Frames:
        saved = self._history.state.run(self._run)
        chunks = [
            (attempt, number, steps)
            for attempt, own in sorted(saved.steps.items())
            for number, steps in sorted(own)
        ]
        for place, (attempt, number, steps) in enumerate(chunks[begin:], begin + 1):
            columns = self._history.state.columns(self._run, attempt, number)
            if columns is not None:
                frame = encode_frame(FrameKind.WINDOW, attempt, number, steps, columns)
                yield frame, (_Section.WINDOWS, place, 0, 0)

    def _curves(self, attempt: int, level_place: int, after: int) -> _Frames:
        """Go through attempts, levels and chunks; *after* is one more than the last number."""
        for own in self._found.attempts:
            if own.number < attempt:
                continue
            if own.number > attempt:
                level_place, after = 0, 0
                layers = self._history.series.layers(self._run, own.number)
                frame = encode_frame(FrameKind.LAYERS, own.number, layers)
                yield frame, (_Section.CURVES, own.number, 0, 0)
            for place in range(level_place, len(_LEVELS)):
                yield from self._level(own.number, place, after)
                after = 0
                yield b"", (_Section.CURVES, own.number, place + 1, 0)
            level_place = 0

    def _level(self, attempt: int, place: int, after: int) -> _Frames:
        series, level = self._history.series, _LEVELS[place]
        number = after - 1
        while found := series.after(self._run, attempt, level, number, 1):
            (facts,) = found
            number = facts.number
            of = self._run, attempt, level, number
            tables = {name: self._body(attempt, level, number, name) for name in series.tables(*of)}
            plain = list(astuple(facts))
            frame = encode_frame(FrameKind.CURVES, attempt, plain, series.head(*of), tables)
            yield frame, (_Section.CURVES, attempt, place, number + 1)

    def _body(self, attempt: int, level: int, number: int, table: str) -> bytes:
        with ExitStack() as stack:
            opened = self._history.series.body(self._run, attempt, level, number, table)
            read = stack.enter_context(opened)
            found = bytearray()
            while read is not None and (piece := read(len(found), _READ_BYTES)):
                found += piece
        return bytes(found)

    def _alerts(self, after: int, *_: int) -> _Frames:
        while page := self._history.alert_events.changes(self._run, after, PAGE_ROWS):
            after = page[-1][0]
            rows = [(own.alert_id, own.change, own.body) for _, own in page]
            yield encode_frame(FrameKind.ALERTS, rows), (_Section.ALERTS, after, 0, 0)

    def _log(self, after: int, *_: int) -> _Frames:
        """Go through the log as it was when the run was saved, and not far beyond the run's end."""
        sessions = {
            own.id: own for attempt in self._found.attempts for own in attempt.sessions.values()
        }
        heard = (max(own.last_ns, own.heard_ns) for own in sessions.values())
        end_ns = max(heard, default=0) + AFTER_NS
        while page := self._history.page(after, PAGE_ROWS):
            after = page[-1][0]
            rows = []
            is_past = False
            for offset, encoded in page:
                if offset > self._offset or encoded is None:
                    continue
                own = self._own(encoded, sessions.keys())
                is_past = encoded.received_ns > end_ns
                if own is not None and not is_past:
                    rows.append((offset, *astuple(own)))
            frame = encode_frame(FrameKind.LOG, rows) if rows else b""
            yield frame, (_Section.LOG, after, 0, 0)
            if is_past or after >= self._offset:
                return

    def _own(self, encoded: EncodedEntry, sessions: Collection[bytes]) -> EncodedEntry | None:
        """Return an entry as far as it is about the run, None if it is not."""
        of_session = encoded.session
        if of_session is not None and of_session not in sessions:
            return None
        try:
            entry = decode_entry(encoded)
        except Exception:  # noqa: BLE001 - a damaged entry must not cost the others
            return None
        match entry.body:
            case Opened() | Received() | Gap() | Lost() | ManifestsDropped() | Tick() | Resumed():
                return encoded
            case FramesClosed(run) | Acknowledged(run) if run == self._run:
                return encoded
            case Beats(progress):
                own = tuple(one for one in progress if one.session in sessions)
                kept = Entry(entry.received_ns, Beats(own))
                return encode_entry(Line(kept)) if own else None
        return None


def encode_cursor(cursor: Cursor) -> str:
    """Return a cursor as a text."""
    return "-".join(map(str, cursor))


def decode_cursor(text: str) -> Cursor:
    """Return the cursor that a text is.

    Raises:
        ValueError: If it is none.
    """
    section, *places = (int(part) for part in text.split("-"))
    first, second, third = places
    if not 0 <= section < _Section.END or min(places) < 0 or max(places) >= 1 << 62:
        msg = "it is no place in an archive"
        raise ValueError(msg)
    return section, first, second, third
