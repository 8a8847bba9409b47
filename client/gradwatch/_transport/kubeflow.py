"""Progress, loss and the newest alert in the status of a Kubeflow TrainJob.

The controller of Kubeflow Trainer 2 sets the three variables in the pods of a TrainJob whose
runtime status is on; the fields are those of its API.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gradwatch._faults import Faults
from gradwatch_wire import Json, Stats
from gradwatch_wire.names import Scalar

if TYPE_CHECKING:
    import ssl

URL_VARIABLE: Final = "KUBEFLOW_TRAINER_SERVER_URL"
CA_VARIABLE: Final = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN_VARIABLE: Final = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105 - name of a variable
OFF_VARIABLE: Final = "DISABLE_KUBEFLOW_INTEGRATION"

EVERY_S: Final = 5.0
"""Time between two posts; transformers posts as often."""

AFTER_ERROR_S: Final = 60.0

TIMEOUT_S: Final = 1.0
"""Limit of the connection, and again of the answer: 2 s in all."""


class KubeflowStatus:
    """Status of the TrainJob that this process is a pod of.

    Args:
        total_steps: Number of steps of the whole training; None leaves progress out.
    """

    def __init__(self, url: str, total_steps: int | None, faults: Faults) -> None:
        self._url = url
        self._total_steps = total_steps
        self._faults = faults
        self._context: ssl.SSLContext | None = None
        self._metrics: dict[str, str] = {}
        self._first: tuple[int, float] | None = None  # a step, and its time
        self._step = 0
        self._has_news = False
        self._due_s = float("-inf")

    def record(self, stats: Stats, now_s: float) -> None:
        """Take the step and the loss of a record."""
        self._step, self._has_news = stats.step, True
        self._first = self._first or (stats.step, now_s)
        if (loss := stats.scalars.get(Scalar.LOSS)) is not None:
            self._metrics["loss"] = f"{loss:.6g}"

    def alert(self, alert: Mapping[str, Json]) -> None:
        """Take the newest event of an alert."""
        self._has_news = True
        self._metrics["gradwatch_alert"] = f"{alert['state']}: {alert['message']}"

    def post(self, now_s: float) -> None:
        """Post the news, at most every `EVERY_S`, and rarer after an error."""
        if not self._has_news or now_s < self._due_s:
            return
        self._has_news, self._due_s = False, now_s + EVERY_S
        try:
            self._send(json.dumps({"trainerStatus": self._describe(now_s)}).encode())
        except Exception as error:  # noqa: BLE001 - the status is not worth a training
            self._due_s = now_s + AFTER_ERROR_S
            self._faults.note("kubeflow", f"{self._url}: {error!r}")

    def _describe(self, now_s: float) -> dict[str, object]:
        metrics = {"step": str(self._step), **self._metrics}
        status: dict[str, object] = {
            "lastUpdatedTime": datetime.now(UTC).isoformat(),
            "metrics": [{"name": name, "value": value} for name, value in metrics.items()],
        }
        if self._total_steps and self._first:
            # 100 is the end of the job, which its controller sees.
            status["progressPercentage"] = min(99, 100 * self._step // self._total_steps)
            steps, left = self._step - self._first[0], max(0, self._total_steps - self._step)
            if steps > 0:
                status["estimatedRemainingSeconds"] = round(left * (now_s - self._first[1]) / steps)
        return status

    def _send(self, body: bytes) -> None:
        import ssl  # noqa: PLC0415 - few processes need them
        import urllib.request  # noqa: PLC0415

        if self._context is None and self._url.startswith("https:"):
            self._context = ssl.create_default_context(cafile=os.environ.get(CA_VARIABLE))
        headers = {"Content-Type": "application/json"}
        if path := os.environ.get(TOKEN_VARIABLE):  # Kubernetes writes it anew from time to time
            headers["Authorization"] = f"Bearer {Path(path).read_text('utf-8').strip()}"
        request = urllib.request.Request(self._url, body, headers)  # noqa: S310 - checked before
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._context):  # noqa: S310
            return


def find_kubeflow(rank: int, total_steps: int | None, faults: Faults) -> KubeflowStatus | None:
    """Return the status that this process keeps: rank 0 of a TrainJob, else None.

    Args:
        total_steps: As in `KubeflowStatus`; 0 where something else keeps the status.
        faults: As in `KubeflowStatus`.
    """
    url = os.environ.get(URL_VARIABLE, "")
    is_off = os.environ.get(OFF_VARIABLE, "").upper() == "TRUE"
    if rank or total_steps == 0 or is_off or not url.startswith(("http://", "https://")):
        return None
    return KubeflowStatus(url, total_steps, faults)
