"""Commands about alerts: to acknowledge one, to silence many, and to end a silence."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.silences import MAX_SILENCES, Silence
from gradwatch_server.core.entries import Acknowledged, SilenceAdded, SilenceRemoved
from gradwatch_server.core.state import State
from gradwatch_server.engine.commands import CommandError, CommandResult
from gradwatch_wire.health import AlertState


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Somebody knows of an alert."""

    alert_id: str
    by: str
    comment: str

    def __call__(self, state: State, _now_ns: int) -> CommandResult:
        """Acknowledge an alert that fires; one that is acknowledged stays as it is."""
        alert = find_alert(state, self.alert_id)
        if alert is None:
            raise CommandError(404, f"no alert {self.alert_id[:80]!a} is in memory")
        if alert.state is not AlertState.FIRING:
            raise CommandError(409, f"alert {alert.id} is {alert.state}, and not firing")

        def answer(after: State) -> dict[str, Any]:
            return (find_alert(after, self.alert_id) or alert).to_dict()

        if alert.acknowledged is not None:
            return CommandResult(answer)
        body = Acknowledged(alert.run, alert.attempt, alert.id, self.by, self.comment)
        return CommandResult(answer, (body,))


@dataclass(frozen=True, slots=True)
class AddSilence:
    """Alerts are not to be told for a while."""

    run: str
    rule: str
    layers: str
    until_ns: int
    by: str
    comment: str

    def __call__(self, state: State, now_ns: int) -> CommandResult:
        """Add it, if there is room among those in force."""
        if self.until_ns <= now_ns:
            raise CommandError(422, "until: a silence in the past would silence nothing")
        in_force = sum(silence.until_ns > now_ns for silence in state.silences)
        if in_force >= MAX_SILENCES:
            raise CommandError(409, f"there are {MAX_SILENCES} silences; delete some first")
        fields = asdict(self) | {"created_ns": now_ns}
        seed = json.dumps(fields).encode()
        silence = Silence(id=hashlib.blake2s(seed, digest_size=8).hexdigest(), **fields)
        return CommandResult(lambda _: silence, (SilenceAdded(silence),))


@dataclass(frozen=True, slots=True)
class RemoveSilence:
    """A silence is to end now."""

    silence_id: str

    def __call__(self, state: State, now_ns: int) -> CommandResult:
        """Remove it, if it is in force."""
        silences = [silence for silence in state.silences if silence.id == self.silence_id]
        if not silences or silences[0].until_ns <= now_ns:
            raise CommandError(404, f"no silence {self.silence_id[:80]!a} is in force")
        return CommandResult(lambda _: None, (SilenceRemoved(self.silence_id),))


def find_alert(state: State, alert_id: str) -> Alert | None:
    """Return an alert of any run, None if there is none of this id."""
    for run in state.runs.values():
        for attempt in run.attempts:
            for alert in attempt.active_alerts.alerts():
                if alert.id == alert_id:
                    return alert
    return None
