"""MLflow: mirrors a run's alerts and key series into a run of MLflow.

Typical use::

    from gradwatch.integrations.mlflow import MlflowMirror

    with mlflow.start_run() as run, MlflowMirror(run.info.run_id) as mirror:
        with gradwatch.attach(model, optimizer, on_alert=mirror) as watch:
            mirror.follow(watch)
            ...
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

try:
    from mlflow import MlflowClient
    from mlflow.entities import Metric
except ModuleNotFoundError as error:
    if error.name != "mlflow":
        raise
    raise ModuleNotFoundError(
        "this mirror needs MLflow; run: pip install mlflow-skinny", name="mlflow"
    ) from None

from gradwatch.integrations._mirror import Mirror, title_of

BATCH: Final = 1_000
"""Numbers that MLflow takes at once."""

ALERTS: Final = "gradwatch/alerts.txt"
MAX_ALERTS: Final = 1_000
"""Alerts in that file, the newest."""


class MlflowMirror(Mirror):
    """Mirrors one run into a run of MLflow; make it on the rank that has that.

    Series are metrics at gradwatch's steps. The tags `gradwatch.run` and `gradwatch.url` have
    its name and the address of its page, the last alert in `gradwatch.alert`, the last 1,000 in the
    artifact `gradwatch/alerts.txt`. With a tracking server the run of gradwatch gets a link to that
    of MLflow.

    Args:
        run_id: Id of the run in MLflow, on the tracking server that is set where this is made.
        every_s: How often series are read, seconds.

    Raises:
        ValueError: If `every_s` is not above 0.
    """

    def __init__(self, run_id: str, *, every_s: float = 10.0) -> None:
        super().__init__(_Tracker(MlflowClient(), run_id), every_s=every_s)


class _Tracker:
    name = "MLflow"

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._alerts: deque[str] = deque(maxlen=MAX_ALERTS)

    def url(self) -> str | None:
        server = _page_of(self._client.tracking_uri)
        if server is None:
            return None
        experiment = self._client.get_run(self._run_id).info.experiment_id
        return f"{server}/#/experiments/{experiment}/runs/{self._run_id}"

    def link(self, run: str, url: str) -> None:
        self._client.set_tag(self._run_id, "gradwatch.run", run)
        self._client.set_tag(self._run_id, "gradwatch.url", url)

    def log(self, steps: Mapping[int, Mapping[str, float]]) -> None:
        now_ms = int(time.time() * 1e3)
        metrics = [
            Metric(name, value, now_ms, step)
            for step, values in steps.items()
            for name, value in values.items()
        ]
        for first in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + BATCH])

    def alert(self, alert: Mapping[str, Any]) -> None:
        line = f"{title_of(alert)}: {alert['message']}"
        self._alerts.append(line)
        self._client.set_tag(self._run_id, "gradwatch.alert", line)
        self._client.log_text(self._run_id, "\n".join(self._alerts) + "\n", ALERTS)

    def flush(self) -> None:
        """MLflow writes at once."""


def _page_of(tracking_uri: str) -> str | None:
    """Return where a tracking server shows its pages, without a password; None if there is none."""
    parts = urlsplit(tracking_uri)
    if parts.scheme not in ("http", "https"):
        return None
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
