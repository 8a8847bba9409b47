"""Memory of open steps and manifests over all runs, and the choice of what goes beyond it.

What one attempt or session may hold, the core keeps to by itself. What all of them hold together is
looked at here, once a round, and what has to go is put into the log: each attempt then follows from
its own entries, also where a checkpoint has one of them as it was later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.entries import FramesClosed, ManifestsDropped
from gradwatch_server.core.session import Session
from gradwatch_server.core.state import State
from gradwatch_server.engine.batch import Batch

SPARE: Final = 16
"""Once something has to go, this part of the budget is freed beyond it."""


@dataclass(frozen=True, slots=True)
class _Held:
    """Memory of one attempt."""

    attempt: Attempt
    open_bytes: int
    manifests_bytes: int
    gone: Counter[str]


class CoreMemory:
    """Knows what is held by which attempt, and lets go of what is too much."""

    def __init__(self, state: State, budget_use: BudgetUse) -> None:
        self._state = state
        self._use = budget_use
        self._limits = budget_use.limits
        self._held: dict[str, list[_Held]] = {}  # run -> its attempts that hold anything
        self._changed = set(state.runs)
        self._open_bytes = self._manifests_bytes = 0

    def note_changed(self, runs: Iterable[str]) -> None:
        """Note that entries concerned these runs."""
        self._changed.update(runs)

    def add(self, now_ns: int, batch: Batch) -> None:
        """Put into a batch what has to go."""
        if not self._changed:
            return
        for run in self._changed:
            self._look_at(run)
        self._changed.clear()
        self._report()
        self._close_frames(now_ns, batch)
        self._drop_manifests(now_ns, batch)

    def _look_at(self, name: str) -> None:
        run = self._state.runs.get(name)
        held = [] if run is None else [_held_by(attempt) for attempt in run.judged]
        before = self._held.pop(name, [])
        self._open_bytes += sum(own.open_bytes for own in held)
        self._open_bytes -= sum(own.open_bytes for own in before)
        self._manifests_bytes += sum(own.manifests_bytes for own in held)
        self._manifests_bytes -= sum(own.manifests_bytes for own in before)
        known = {id(own.attempt): own.gone for own in before}
        for own in held:
            for budget, count in (own.gone - known.get(id(own.attempt), Counter())).items():
                self._use[budget].num_evicted += count
        if held:
            self._held[name] = held

    def _all(self) -> Iterable[_Held]:
        return (own for held in self._held.values() for own in held)

    def _close_frames(self, now_ns: int, batch: Batch) -> None:
        excess = _excess(self._open_bytes, self._limits.open_frames_bytes)
        if not excess:
            return
        # One step of many ranks takes much, and is no more than each of them may send.
        most = max(self._all(), key=lambda own: own.open_bytes / own.attempt.shares)
        attempt, rest = most.attempt, max(most.open_bytes - excess, 0)
        batch.add(attempt.run, now_ns, FramesClosed(attempt.run, attempt.number, rest))
        self._changed.add(attempt.run)

    def _drop_manifests(self, now_ns: int, batch: Batch) -> None:
        excess = _excess(self._manifests_bytes, self._limits.manifests_bytes)
        if not excess:
            return
        most = max(self._all(), key=lambda own: own.manifests_bytes)
        session = max(most.attempt.sessions.values(), key=_droppable)
        rest = max(session.manifests_bytes - excess, 0)
        batch.add(most.attempt.run, now_ns, ManifestsDropped(session.id, rest))
        self._changed.add(most.attempt.run)

    def _report(self) -> None:
        use, all_held = self._use, list(self._all())
        use["open_frames_bytes"].used = self._open_bytes
        use["manifests_bytes"].used = self._manifests_bytes
        use["open_frames_bytes_per_attempt"].used = max(
            (own.open_bytes for own in all_held), default=0
        )
        use["layers_bytes_per_attempt"].used = max(
            (own.attempt.layers.num_bytes for own in all_held), default=0
        )
        use["manifests_bytes_per_session"].used = max(
            (own.attempt.manifests.most_bytes for own in all_held), default=0
        )


def _held_by(attempt: Attempt) -> _Held:
    gone = attempt.open.num_closed_early + attempt.manifests.num_dropped
    return _Held(attempt, attempt.open.num_bytes, attempt.manifests.num_bytes, gone)


def _excess(used: int, most: int) -> int:
    """Return how much has to go, 0 if all fits."""
    return used - most + most // SPARE if used > most else 0


def _droppable(session: Session) -> tuple[bool, int]:
    """Order sessions by what they can do without: the newest manifest is needed for what comes."""
    return len(session.manifests) > 1, session.manifests_bytes
