"""Questions that only the engine can answer. They change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.core.run import Run
from gradwatch_server.core.state import State
from gradwatch_server.core.views.snapshot import RunView, view_attempt
from gradwatch_server.engine.alert_commands import find_alert
from gradwatch_server.engine.commands import Outcome

Layouts = Mapping[tuple[bytes, int], IndexArray]
"""Session and manifest to (own layers,) the place of each layer in the attempt."""


@dataclass(frozen=True, slots=True)
class _OfAttempt:
    """A question about an attempt.

    Args:
        run: Name of the run.
        attempt: Number of the attempt.
    """

    run: str
    attempt: int

    def __call__(self, _state: State, _now_ns: int) -> Outcome:
        """Change nothing."""
        return Outcome(self._answer)

    def _answer(self, state: State) -> object:
        run = state.runs.get(self.run)
        return None if run is None else self._of(run, state)

    def _of(self, run: Run, state: State) -> object:
        raise NotImplementedError


class ShowAttempt(_OfAttempt):
    """Request for the view of an attempt that no view shows; None if it is not in memory."""

    def _of(self, run: Run, _state: State) -> RunView | None:
        return view_attempt(run, self.attempt, run.rules)


@dataclass(frozen=True, slots=True)
class ShowAlertLayers(_OfAttempt):
    """Request for the places of all layers of an alert.

    None for an alert that is over, or of an attempt that is not in memory.

    Args:
        alert: Id of the alert.
    """

    alert: str = ""

    def _of(self, run: Run, _state: State) -> IndexArray | None:
        for attempt in run.attempts:
            if attempt.number == self.attempt:
                layers = attempt.active_alerts.layers_of(self.alert)
                return None if layers is None else np.flatnonzero(layers)
        return None


@dataclass(frozen=True, slots=True)
class ShowAlert:
    """Request for an alert as it stands; None if it is not in memory.

    Args:
        alert: Id of the alert.
    """

    alert: str

    def __call__(self, _state: State, _now_ns: int) -> Outcome:
        """Change nothing."""
        return Outcome(lambda state: find_alert(state, self.alert))


class ShowLayouts(_OfAttempt):
    """Request for the layers that records are about, as `Layouts`."""

    def _of(self, run: Run, _state: State) -> Layouts:
        return {
            (session.id, number): manifest.layout.index
            for attempt in run.attempts
            if attempt.number == self.attempt
            for session in attempt.sessions.values()
            for number, manifest in session.manifests.items()
        }
