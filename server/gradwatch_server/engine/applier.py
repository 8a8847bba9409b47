"""Applying committed entries to the state, and noting what that changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.entries import (
    Acknowledged,
    Beats,
    Entry,
    Forgotten,
    FramesClosed,
    Gap,
    Lost,
    ManifestsDropped,
    Opened,
    Received,
)
from gradwatch_server.core.state import State
from gradwatch_server.engine.published import PublishedState, Publisher
from gradwatch_server.engine.series_recorder import SeriesRecorder
from gradwatch_server.storage.checkpointer import Checkpointer

logger = logging.getLogger(__name__)


class Applier:
    """Brings the state, and what is to be saved and published of it, to the end of the log."""

    def __init__(
        self,
        state: State,
        checkpointer: Checkpointer,
        publisher: Publisher,
        published: PublishedState,
        recorder: SeriesRecorder,
    ) -> None:
        self.state = state
        self.checkpointer = checkpointer
        self.publisher = publisher
        self.on_forgotten: Callable[[bytes], None] = lambda _session: None
        self.on_entry: Callable[[Entry], None] = lambda _entry: None
        self.on_changed: Callable[[Collection[str]], None] = lambda _runs: None
        self._published = published
        self._recorder = recorder

    def apply(self, entry: Entry, offset: int, ahead: Sequence[str] = ()) -> list[Alert]:
        """Apply one entry. A fault of ours in it must not cost the entries after it.

        Args:
            entry: The entry.
            offset: Its place in the log.
            ahead: Runs that have it already.
        """
        self._recorder.offset = offset
        try:
            self.checkpointer.note(entry, offset, self.state)
            if isinstance(entry.body, Forgotten):
                self._forget(entry.body)
            alerts = self.state.apply(entry, ahead) if ahead else self.state.apply(entry)
        except Exception:
            if not self._published.num_apply_errors:
                logger.exception("an entry of the log could not be applied (told once)")
            self._published.num_apply_errors += 1
            return []
        self._note_changed(entry)
        self.on_entry(entry)
        return alerts

    def _note_changed(self, entry: Entry) -> None:
        names = self._concerned(entry)
        self.publisher.note_changed(names & self.state.runs.keys())
        self.on_changed(names)

    def _concerned(self, entry: Entry) -> set[str]:
        """Return the names of the runs that an entry may have changed; some may be gone by now."""
        match entry.body:
            case Received(envelope):
                return self._runs_of([envelope.session])
            case (
                Opened(session, _)
                | Gap(session, _, _)
                | Lost(session)
                | ManifestsDropped(session, _)
            ):
                return self._runs_of([session])
            case Beats(progress):
                return self._runs_of(own.session for own in progress)
            case Acknowledged(run=run) | Forgotten(run=run) | FramesClosed(run=run):
                return {run}
        return set(self.state.runs)

    def _runs_of(self, ids: Iterable[bytes]) -> set[str]:
        known = (self.state.sessions.get(session_id) for session_id in ids)
        return {session.hello.run for session in known if session is not None}

    def _forget(self, gone: Forgotten) -> None:
        """Forget the sessions of attempts that leave memory, and the run if none is left."""
        self._recorder.forget(gone)
        attempts = self.state.runs[gone.run].attempts
        for attempt in attempts:
            for session in attempt.sessions.values() if attempt.number <= gone.attempts else ():
                self.on_forgotten(session.id)
        if attempts[-1].number <= gone.attempts:
            self.publisher.remove(gone.run)
