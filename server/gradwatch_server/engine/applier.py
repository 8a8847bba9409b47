"""Applying committed entries to the state, and noting what that changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.entries import (
    Acknowledged,
    Beats,
    Entry,
    Forgotten,
    Gap,
    Lost,
    Opened,
    Received,
    Resumed,
    RulesSet,
    SilenceAdded,
    SilenceRemoved,
    Tick,
)
from gradwatch_server.core.state import State
from gradwatch_server.engine.published import PublishedState, Publisher
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
    ) -> None:
        self.state = state
        self.checkpointer = checkpointer
        self.publisher = publisher
        self.on_forgotten: Callable[[bytes], None] = lambda _session: None
        self.on_entry: Callable[[Entry], None] = lambda _entry: None
        self._published = published

    def apply(self, entry: Entry, offset: int, ahead: Sequence[str] = ()) -> list[Alert]:
        """Apply one entry. A fault of ours in it must not cost the entries after it.

        Args:
            entry: The entry.
            offset: Its place in the log.
            ahead: Runs that have it already.
        """
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
        sessions = self.state.sessions
        match entry.body:
            case Received(envelope):
                self.publisher.note_changed([sessions[envelope.session].hello.run])
            case Opened(session, _) | Gap(session, _, _) | Lost(session):
                self.publisher.note_changed([sessions[session].hello.run])
            case Beats(progress):
                known = (sessions.get(own.session) for own in progress)
                self.publisher.note_changed({own.hello.run for own in known if own is not None})
            case Tick() | Resumed() | RulesSet():
                self.publisher.note_changed(self.state.runs)
            case Acknowledged(run=run) | Forgotten(run=run):
                self.publisher.note_changed({run} & self.state.runs.keys())
            case SilenceAdded() | SilenceRemoved():
                self._published.silences = tuple(self.state.silences)
                self.publisher.note_changed(self.state.runs)

    def _forget(self, gone: Forgotten) -> None:
        """Forget the sessions of attempts that leave memory, and the run if none is left."""
        attempts = self.state.runs[gone.run].attempts
        for attempt in attempts:
            for session in attempt.sessions.values() if attempt.number <= gone.attempts else ():
                self.on_forgotten(session.id)
        if attempts[-1].number <= gone.attempts:
            self.publisher.remove(gone.run)
