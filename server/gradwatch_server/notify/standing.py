"""How alerts stand at this moment, and which of them are still worth repeating."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class AttemptLife:
    """Whether there is anybody for whom the alerts of an attempt are repeated.

    The alerts of an attempt that is over stand as they stood at its end. Nobody can do anything
    about those of one that ended well, or was taken up again.

    Args:
        is_alive: Whether a rank of it is.
        is_newest: Whether the run was not taken up again since.
        ended_well: Whether all ranks said that they ended, and not by an exception.
        last_ns: Its last sign of life, nanoseconds since the epoch.
    """

    is_alive: bool
    is_newest: bool
    ended_well: bool
    last_ns: int

    @classmethod
    def of(cls, whole: RunView, number: int) -> AttemptLife | None:
        """Return that of an attempt of a run, None if it is not in memory."""
        attempt = whole.of_attempt(number)
        if attempt is None:
            return None
        states = {rank.state for rank in attempt.ranks}
        return cls(
            is_alive=RankState.ALIVE in states,
            is_newest=number == max(line.number for line in whole.attempts),
            ended_well=states == {RankState.ENDED},
            # A run that hung has no frames for long, and ranks that said so until its end.
            last_ns=max(attempt.updated_ns, *(rank.last_ns for rank in attempt.ranks)),
        )

    def is_spoken_of(self, now_s: float) -> bool:
        """Tell whether its alerts are to be told again."""
        if self.is_alive:
            return True
        return self.is_newest and not self.ended_well and now_s - self.last_ns / 1e9 < AFTER_END_S


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
        """Tell whether an alert that was told fires on and is to be told again."""
        alert, whole = self.find(run, alert_id), self._runs().get(run)
        if alert is None or alert.state is not AlertState.FIRING or whole is None:
            return False
        life = AttemptLife.of(whole, alert.attempt)
        return life is not None and life.is_spoken_of(now_s)
