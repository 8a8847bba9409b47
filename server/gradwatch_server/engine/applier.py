"""Applying entries to the state, and noting what that changes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.entries import Entry, Forgotten
from gradwatch_server.core.state import State
from gradwatch_server.engine.curve_recorder import CurveRecorder
from gradwatch_server.engine.published import PublishedState, Publisher
from gradwatch_server.storage.checkpointer import Checkpointer

logger = logging.getLogger(__name__)


class Applier:
    """Brings the runs, and what is to be saved and published of them, to the end of their logs."""

    def __init__(
        self,
        state: State,
        checkpointer: Checkpointer,
        publisher: Publisher,
        published: PublishedState,
        recorder: CurveRecorder,
    ) -> None:
        self.state = state
        self.checkpointer = checkpointer
        self.publisher = publisher
        self.on_forgotten: Callable[[bytes], None] = lambda _session: None
        self.on_entry: Callable[[Entry], None] = lambda _entry: None
        self.on_changed: Callable[[str], None] = lambda _run: None
        self._published = published
        self._recorder = recorder

    def apply(self, name: str, entry: Entry, number: int) -> list[Alert]:
        """Apply one entry. A fault of ours in it must not cost the entries after it.

        Args:
            name: The run.
            entry: The entry.
            number: Its number in the log of the run.
        """
        self._recorder.number = number
        try:
            self.checkpointer.note(name, entry, self.state)
            alerts = self._apply(name, entry, number)
        except Exception:
            if not self._published.num_apply_errors:
                logger.exception("an entry of the log could not be applied (told once)")
            self._published.num_apply_errors += 1
            return []
        if name in self.state.runs:
            self.publisher.note_changed((name,))
        self.on_changed(name)
        self.on_entry(entry)
        return alerts

    def _apply(self, name: str, entry: Entry, number: int) -> list[Alert]:
        run = self.state.runs.get(name)
        if not isinstance(entry.body, Forgotten) or run is None:
            return self.state.apply_to(name, entry, number)
        self._recorder.forget(entry.body)
        before = set(run.sessions)
        alerts = self.state.apply_to(name, entry, number)
        for session_id in before - run.sessions.keys():
            self.on_forgotten(session_id)
        if not run.attempts:
            self.checkpointer.forget(run)
            self.publisher.remove(name)
        return alerts
