"""How alerts stand at this moment, and which of them are still worth repeating."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_wire.health import AlertState, RankState

AFTER_END_S: Final = 86_400.0
"""How long after its end a run that failed or was lost is still spoken of, seconds: a night, for
who could start it again."""


class StandingAlert(Protocol):
    """What decides whether an alert is still to be told; `Alert` has it."""

    @property
    def state(self) -> AlertState:
        """Whether it fires."""

    @property
    def silenced(self) -> object:
        """What keeps it from being told, if anything."""

    @property
    def acknowledged(self) -> object:
        """Who knows of it, if anybody."""


class Standing(Protocol):
    """How alerts stand, for any thread."""

    def find(self, run: str, alert_id: str) -> StandingAlert | None:
        """Return an alert as it stands, None if that is not known."""

    def is_repeated(self, run: str, alert_id: str, now_s: float) -> bool:
        """Tell whether an alert that was told fires on and is to be told again.

        Args:
            run: Name of the run.
            alert_id: The alert.
            now_s: Seconds since the epoch.
        """


class PublishedStanding:
    """Alerts as readers of the runs see them."""

    def __init__(self, runs: Callable[[], Mapping[str, RunView]]) -> None:
        """Look nowhere yet; *runs* returns the newest views by the names of the runs."""
        self._runs = runs

    def find(self, run: str, alert_id: str) -> Alert | None:
        """Return an alert as it stands, None if it is not in memory."""
        view = self._runs().get(run)
        alerts = () if view is None else view.alerts
        return next((own for own in alerts if own.id == alert_id), None)

    def is_repeated(self, run: str, alert_id: str, now_s: float) -> bool:
        """Tell whether an alert that was told fires on and is to be told again.

        The alerts of a run that is over stand as they stood at its end. Nobody can do anything
        about those of one that ended well, or was taken up again.
        """
        alert = self.find(run, alert_id)
        if alert is None or alert.state is not AlertState.FIRING:
            return False
        whole = self._runs().get(run)
        attempt = None if whole is None else whole.of_attempt(alert.attempt)
        if whole is None or attempt is None:
            return False
        states = {rank.state for rank in attempt.ranks}
        if RankState.ALIVE in states:
            return True
        is_newest = alert.attempt == max(line.number for line in whole.attempts)
        ended_well = states == {RankState.ENDED}
        # A run that hung has no frames for long, and ranks that said so until its end.
        ended_ns = max(attempt.updated_ns, *(rank.last_ns for rank in attempt.ranks))
        return is_newest and not ended_well and now_s - ended_ns / 1e9 < AFTER_END_S
