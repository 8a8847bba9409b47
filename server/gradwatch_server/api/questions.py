"""Questions that only the engine can answer: commands that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.state import State
from gradwatch_server.core.views.snapshot import view_attempt
from gradwatch_server.engine.alert_commands import find_alert
from gradwatch_server.engine.commands import Command, CommandResult

Layouts: TypeAlias = Mapping[tuple[bytes, int], IndexArray]
"""Session and manifest to (own layers,) the place of each layer in the attempt."""


def show_alert(alert_id: str) -> Command:
    """Return a question for an alert as it stands; None if it is not in memory."""
    return lambda _state, _now_ns: CommandResult(lambda state: find_alert(state, alert_id))


def show_attempt(name: str, number: int) -> Command:
    """Return a question for the view of an attempt that no view shows; None if it is gone."""

    def answer(state: State) -> object:
        run = state.runs.get(name)
        return None if run is None else view_attempt(run, number, run.rules)

    return lambda _state, _now_ns: CommandResult(answer)


def show_alert_layers(run: str, number: int, alert_id: str) -> Command:
    """Return a question for the places of all layers of an alert.

    None for an alert that is over, or of an attempt that is not in memory.
    """

    def answer(attempt: Attempt) -> object:
        layers = attempt.active_alerts.layers_of(alert_id)
        return None if layers is None else np.flatnonzero(layers)

    return _of_attempt(run, number, answer)


def show_layouts(run: str, number: int) -> Command:
    """Return a question for the layers that records are about, `Layouts`; None if it is gone."""

    def answer(attempt: Attempt) -> object:
        return {
            (session.id, manifest_id): manifest.layout.index
            for session in attempt.sessions.values()
            for manifest_id, manifest in session.manifests.items()
        }

    return _of_attempt(run, number, answer)


def _of_attempt(name: str, number: int, answer: Callable[[Attempt], object]) -> Command:
    def find(state: State) -> object:
        run = state.runs.get(name)
        attempts = () if run is None else run.attempts
        attempt = next((each for each in attempts if each.number == number), None)
        return None if attempt is None else answer(attempt)

    return lambda _state, _now_ns: CommandResult(find)
