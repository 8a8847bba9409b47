"""What a store has of one run, for who reads beside the engine and changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from gradwatch_server.core.entries import (
    Entry,
    Forgotten,
    FramesClosed,
    Gap,
    Opened,
    Received,
    RulesSet,
)
from gradwatch_server.storage.checkpoints import load_forgotten, load_run
from gradwatch_server.storage.encoding import EncodedEntry, decode_entry
from gradwatch_server.storage.series_store import SeriesStore
from gradwatch_server.storage.store import AlertEvent, AlertEventReader, SavedState
from gradwatch_wire import Kind

logger = logging.getLogger(__name__)

PAGE_ENTRIES: Final = 500
"""Entries read at once: the writer's WAL does not shrink during a read."""


class History(Protocol):
    """A store that cannot be written through this."""

    @property
    def name(self) -> str:
        """What errors call it: its path or its address."""

    @property
    def alert_events(self) -> AlertEventReader:
        """What readers were told of alerts."""

    @property
    def state(self) -> SavedState:
        """What a restart begins with."""

    @property
    def series(self) -> SeriesStore:
        """The curves, of which nothing can be written."""

    def span(self) -> tuple[int, int]:
        """Return the places of the oldest and the newest entry of the log, (0, 0) without any."""

    def page(self, after: int, most: int) -> list[tuple[int, EncodedEntry | None]]:
        """Return up to *most* entries after an offset with theirs, oldest first.

        None stands for one that is not what was written.
        """

    def close(self) -> None:
        """Let it go."""


@dataclass(slots=True)
class RunHistory:
    """The entries of one run, as far as they are kept.

    Args:
        history: The store.
        run: Name of the run.
        sessions: Its sessions so far, each with the number of its last record.
        trimmed: Those of them with records that are not kept any more.
        others: Names of other runs so far.
    """

    history: History
    run: str
    sessions: dict[bytes, int] = field(default_factory=dict)
    trimmed: set[bytes] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

    def entries(self, on_progress: Callable[[int, int], None]) -> Iterator[Entry]:
        """Yield the entries that concern the run or all runs, oldest first, but no rules.

        Args:
            on_progress: Is told after each page how many entries of all are read.
        """
        first, last = self.history.span()
        after = first - 1
        while page := self.history.page(after, PAGE_ENTRIES):
            for offset, encoded in page:
                entry = self._wanted(offset, encoded)
                if entry is not None:
                    yield entry
            after = page[-1][0]
            on_progress(after - first + 1, max(last, after) - first + 1)

    def _wanted(self, offset: int, encoded: EncodedEntry | None) -> Entry | None:
        if encoded is None:
            logger.warning("log line %d is damaged", offset)
            return None
        # To decode a record costs most: those of other runs are left as they are.
        of_others = encoded.session is not None and encoded.session not in self.sessions
        if of_others and encoded.kind != Kind.HELLO:
            return None
        try:
            entry = decode_entry(encoded)
        except Exception as error:  # noqa: BLE001 - a damaged row must not cost the next ones
            logger.warning("log line %d cannot be read: %s", offset, error)
            return None
        return entry if self._notes(entry) else None

    def _notes(self, entry: Entry) -> bool:
        """Note what an entry tells of the sessions; return whether it concerns the run."""
        match entry.body:
            case RulesSet() | Forgotten():
                return False  # other rules are in force, and what is forgotten is still there
            case FramesClosed(run) if run != self.run:
                return False
            case Opened(_, hello) if hello.run != self.run:
                self.others.add(hello.run)
                return False
            case Opened(session, _):
                self.sessions.setdefault(session, 0)
            case Received(envelope):
                self._count(envelope.session, envelope.seq, envelope.seq)
            case Gap(session, first, last):
                self._count(session, first, last)
        return True

    def _count(self, session: bytes, first: int, last: int) -> None:
        if first > self.sessions[session] + 1:
            self.trimmed.add(session)
        self.sessions[session] = last

    def attempts_before(self, session: bytes) -> int:
        """Return how many attempts of the run there were before that of its oldest session."""
        run = load_run(self.history.state, self.run)
        if run is not None:
            for attempt in run.attempts:
                if any(own.id == session for own in attempt.sessions.values()):
                    return attempt.number - 1
        return load_forgotten(self.history.state).get(self.run, 0)

    def alert_events(self) -> Iterator[AlertEvent]:
        """Yield the alert events of the run, oldest first."""
        cursor = 0
        while page := self.history.alert_events.after(cursor, self.run):
            yield from page
            cursor = page[-1].cursor
