"""To Prometheus' Alertmanager by its v2 API, which groups, silences and repeats by itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote

from gradwatch_server.core.alerting.wording import cut
from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError
from gradwatch_server.notify.notification import AlertBody, Notification
from gradwatch_server.notify.notifiers.base import MAX_REASON, TIMEOUT_S, DeliveryError, Notifier
from gradwatch_server.notify.policy import Policy
from gradwatch_server.notify.secrets import redacted
from gradwatch_server.storage.deliveries import DeliveryState
from gradwatch_wire.health import AlertState, Severity

if TYPE_CHECKING:
    import httpx

RESEND_S: Final = 120.0
"""Seconds between two messages about an alert that fires."""

VALID_S: Final = 600.0
"""Seconds that an alert fires in Alertmanager if no message follows: gradwatch may be gone."""

HEARD_S: Final = 60.0
"""Time for which an alert fires there at least: what is over within its `group_wait`, by default
30 s, is told to nobody."""

PER_REQUEST: Final = 64
"""Alerts of one request."""

MAX_LABEL: Final = 200
"""Characters of a label's value: names of layers are as long as peers like."""

API: Final = "/api/v2/alerts"

TEST_ALERT: Final = "gradwatch_test"

_SEVERITIES: Final = tuple(Severity)


class AlertmanagerNotifier(Notifier):
    """One Alertmanager; of several that know each other, name each as a target of its own."""

    name: ClassVar[str] = "alertmanager"
    unused: ClassVar[frozenset[str]] = frozenset(
        {"group_by", "group_wait_s", "group_interval_s", "resolved"}
    )

    def __init__(self, url: str) -> None:
        """Read the URL of its page, such as `http://127.0.0.1:9093`."""
        import httpx  # noqa: PLC0415 - 70 ms that only who has an Alertmanager pays

        self._secret = url
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, UnicodeError):
            parsed = httpx.URL()
        is_web = parsed.scheme in ("http", "https") and parsed.host and not parsed.query
        if not is_web or not (parsed.port is None or 0 < parsed.port < 65_536):
            msg = "should be the URL of an Alertmanager, such as http://127.0.0.1:9093"
            raise GradwatchError(msg)
        # It writes each URL that it asks into the log.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._auth = None
        if parsed.userinfo:
            self._auth = unquote(parsed.username), unquote(parsed.password)
        self._url = parsed.copy_with(userinfo=b"", path=parsed.path.rstrip("/") + API)
        self._tls = httpx.create_ssl_context()  # reads all certificates

    @classmethod
    def schedule(cls, policy: Policy) -> Policy:
        """Tell everything at once, and send again what fires."""
        return replace(
            policy,
            group_by=(),
            group_wait_s=0.0,
            group_interval_s=0.0,
            min_firing_s=HEARD_S,
            resend_s=RESEND_S,  # also what is silenced here: what it is not sent it takes for over
            resolved=True,
        )

    def send(self, notice: Notification) -> None:
        alerts: list[dict[str, Any]] = []
        for entry in notice.batch.entries:
            if (facts := notice.read(entry)) is not None:
                alerts += _alerts(facts, entry, notice)
        self._post(alerts)

    def test(self, page_url: str | None) -> None:
        """Send an alert that says it is a test, and is over after a minute."""
        alert = {
            "labels": {"alertname": TEST_ALERT, "severity": str(Severity.INFO)},
            "annotations": {"summary": "This is a test: alerts of gradwatch arrive here."},
            "endsAt": _time(time.time() + 60.0),
        }
        self._post([alert | ({"generatorURL": f"{page_url}/"} if page_url else {})])

    def _post(self, alerts: Sequence[dict[str, Any]]) -> None:
        import httpx  # noqa: PLC0415

        try:
            with httpx.Client(verify=self._tls, auth=self._auth, timeout=TIMEOUT_S) as client:
                for first in range(0, len(alerts), PER_REQUEST):
                    self._check(client.post(self._url, json=alerts[first : first + PER_REQUEST]))
        except httpx.HTTPError as error:
            reason = self._shown(f"{type(error).__name__}: {error}")
            raise DeliveryError(reason, is_refused=isinstance(error, httpx.ConnectError)) from None

    def _check(self, answer: httpx.Response) -> None:
        if not answer.is_success:
            said = self._shown(f"it answers {answer.status_code}: {answer.text[:MAX_REASON]}")
            raise DeliveryError.answered(said, answer.status_code)

    def _shown(self, text: str) -> str:
        return cut(printable(redacted(" ".join(text.split()), self._secret)), MAX_REASON)


def _alerts(
    facts: AlertBody, entry: DeliveryState, notice: Notification
) -> Iterator[dict[str, Any]]:
    """Yield an alert as Alertmanager takes it; before it, where its severity rose, the one it was.

    The severity is a label, and with another one it is another alert there.
    """
    severity = Severity(facts["severity"])
    if facts.get("raised_step") is not None and not notice.batch.is_resend:
        for lower in _SEVERITIES[: _SEVERITIES.index(severity)]:
            yield _alert(facts, entry, notice, lower, ends_s=notice.now_s)
    if entry.state == AlertState.FIRING:
        ends_s = notice.now_s + VALID_S
    elif entry.is_told:
        # Not in its future, where it would still fire.
        ends_s = min(_seconds(facts["updated_at"]), notice.now_s)
    else:
        ends_s = notice.now_s + HEARD_S
    yield _alert(facts, entry, notice, severity, ends_s)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _alert(
    facts: AlertBody, entry: DeliveryState, notice: Notification, severity: Severity, ends_s: float
) -> dict[str, Any]:
    began_s = _seconds(facts["fired_at"])
    alert: dict[str, Any] = {
        "labels": _labels(facts, severity),
        "annotations": _annotations(facts, entry),
        "startsAt": _time(min(began_s, ends_s)),
        "endsAt": _time(ends_s),
    }
    if (link := notice.link(entry)) is not None:
        alert["generatorURL"] = link
    return alert


def _labels(facts: AlertBody, severity: Severity) -> dict[str, str]:
    """Return what makes it this alert: the same from its first event to its last."""
    labels = {
        "alertname": facts["rule"],
        "run": facts["run"],
        "attempt": str(facts["attempt"]),
        "group": facts["group"],
        "severity": str(severity),
        "gradwatch_id": facts["id"],
    }
    return {name: cut(value, MAX_LABEL) for name, value in labels.items()}


def _annotations(facts: AlertBody, entry: DeliveryState) -> dict[str, str]:
    origin = facts["origin"]
    shown = {
        "summary": f"{facts['run']}: {facts['rule']} at step {facts['first_step']}",
        "description": facts["message"],
        "layer": origin.get("layer"),
        "rank": origin.get("rank"),
        "step": facts["first_step"],
        "value": origin["value"],
        "threshold": origin.get("threshold"),
        "hints": "; ".join(facts.get("hints", ())),
        "acknowledged_by": (facts.get("acknowledged") or {}).get("by"),
        "gradwatch_event": entry.cursor,
    }
    return {name: str(value) for name, value in shown.items() if value not in (None, "")}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
