"""Alerts as they stand at this moment, and which of them are still worth sending again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_wire.health import AlertState, RankState

AFTER_END_S: Final = 86_400.0
"""Time after its end in which a run that failed or was lost is still spoken of, seconds: a night,
for who could start it again."""


class AlertLookup:
    """Alerts as readers of the runs see them, for any thread."""

    def __init__(self, find_view: Callable[[str], RunView | None]) -> None:
        """Look nowhere yet; *find_view* returns the newest view of a run."""
        self._find_view = find_view

    def find(self, run: str, alert_id: str) -> Alert | None:
        """Return an alert as it stands, None if it is not in memory."""
        return _find(self._find_view(run), alert_id)

    def is_resent(self, run: str, alert_id: str, now_s: float) -> bool:
        """Tell whether an alert that was told fires on, and somebody can do something about it.

        The alerts of an attempt that is over stand as they stood at its end. Nobody can do anything
        about those of one that ended well, or was taken up again.
        """
        whole = self._find_view(run)
        alert = _find(whole, alert_id)
        if alert is None or alert.state is not AlertState.FIRING or whole is None:
            return False
        attempt = whole.of_attempt(alert.attempt)
        if attempt is None:
            return False
        states = {rank.state for rank in attempt.ranks}
        if RankState.ALIVE in states:
            return True
        is_newest = alert.attempt == max(line.number for line in whole.attempts)
        # A run that hung has no frames for long, and ranks that said so until its end.
        last_ns = max(attempt.updated_ns, *(rank.last_ns for rank in attempt.ranks))
        is_recent = now_s - last_ns / 1e9 < AFTER_END_S
        return is_newest and states != {RankState.ENDED} and is_recent


def _find(view: RunView | None, alert_id: str) -> Alert | None:
    alerts = () if view is None else view.alerts
    return next((alert for alert in alerts if alert.id == alert_id), None)
