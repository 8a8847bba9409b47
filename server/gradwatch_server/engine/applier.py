"""Applying entries to runs, and telling the parts of the engine what that changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.entries import Entry, Forgotten
from gradwatch_server.core.state import State
from gradwatch_server.engine.curve_recorder import CurveRecorder
from gradwatch_server.engine.memory import RunMemory
from gradwatch_server.engine.publishing import PublishedState, Publishing
from gradwatch_server.storage.checkpointer import Checkpointer

logger = logging.getLogger(__name__)


@dataclass
class Applier:
    """Applies entries to the runs that they are of.

    Attributes:
        forgotten: Sessions that left memory; the engine takes them from here.
    """

    state: State
    checkpointer: Checkpointer
    publishing: Publishing
    published: PublishedState
    recorder: CurveRecorder
    memory: RunMemory
    forgotten: list[bytes] = field(default_factory=list)

    def apply_all(self, name: str, entries: Iterable[Entry], number: int) -> list[Alert]:
        """Apply entries of one run; return the alerts that come of them.

        Args:
            number: Number of the first of them in the log of the run.
        """
        alerts: list[Alert] = []
        self.checkpointer.begin(name, self.state.runs.get(name))
        for position, entry in enumerate(entries, number):
            alerts += self.apply(name, entry, position)
        self.checkpointer.end(name, self.state.runs.get(name))
        self.publishing.mark_changed(name)
        self.memory.mark_changed(name)
        return alerts

    def apply(self, name: str, entry: Entry, number: int) -> list[Alert]:
        """Apply one entry; return the alerts that come of it.

        An entry that cannot be applied is counted. It must not cost the entries after it.
        """
        self.recorder.number = number
        try:
            return self._apply(name, entry, number)
        except Exception:
            if not self.published.num_apply_errors:
                logger.exception("an entry of the log could not be applied (told once)")
            self.published.num_apply_errors += 1
            return []

    def _apply(self, name: str, entry: Entry, number: int) -> list[Alert]:
        if type(entry.body) is not Forgotten or name not in self.state.runs:
            return self.state.apply_to(name, entry, number)
        run = self.state.runs[name]
        self.recorder.forget(entry.body)
        before = set(run.sessions)
        alerts = self.state.apply_to(name, entry, number)
        self.forgotten += before - run.sessions.keys()
        if not run.attempts:
            self.checkpointer.forget(run)
        return alerts
