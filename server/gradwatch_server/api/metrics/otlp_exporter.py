"""The exporter of OpenTelemetry's metrics over HTTP, which tells in our log what fails.

Its library logs each try, with what the collector answers and with headers that it cannot read.
Secrets may be in either, so none of that is shown.
"""

from __future__ import annotations

import logging
import os
import re
import time
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

from gradwatch_server.errors import GradwatchError

logger = logging.getLogger(__name__)

PATH: Final = "/v1/metrics"
"""Where a collector takes metrics, below its address."""

TIMEOUT_S: Final = 5.0
"""How long one export may take, tries over again included."""

TELL_EVERY_S: Final = 3_600.0
"""How often it is told how many exports failed, after the first."""

HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")
_HEADER: Final = re.compile(r"\s*[!#$%&'*+.^_`|~0-9A-Za-z-]+\s*=[^\x00-\x20\",;\\\x7f]*\s*")


class _Session(requests.Session):
    """Notes in words how the last request went, without anything that was sent or answered."""

    problem = ""

    def __init__(self) -> None:
        super().__init__()
        self.max_redirects = 0  # the headers are for this collector only

    def send(self, request: requests.PreparedRequest, **settings: Any) -> requests.Response:
        try:
            response = super().send(request, **settings)
        except requests.exceptions.SSLError:
            self.problem = "its certificate is not trusted"
            raise
        except requests.exceptions.ReadTimeout:
            self.problem = f"no answer within {TIMEOUT_S:g} s"
            raise
        except requests.exceptions.ConnectionError:
            self.problem = "nobody answers there"
            raise
        except requests.exceptions.RequestException as error:
            self.problem = type(error).__name__
            raise
        self.problem = f"it answers {response.status_code}"
        return response


class Exporter(OTLPMetricExporter):
    """Sends metrics to a collector.

    Args:
        endpoint: Base address of the collector.

    Raises:
        GradwatchError: If the headers in the environment are malformed.
    """

    def __init__(self, endpoint: str) -> None:
        _check_headers()
        parts = urlsplit(endpoint)
        self._shown = f"{parts.scheme}://{parts.netloc}"
        self._http = _Session()
        self._failed = 0  # exports in a row
        self._untold = 0
        self._told_s = 0.0
        super().__init__(endpoint=endpoint + PATH, timeout=TIMEOUT_S, session=self._http)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Send metrics, and tell if that fails; nothing is raised."""
        self._http.problem = "they could not be put together"
        result = super().export(metrics_data, timeout_millis=timeout_millis, **kwargs)
        if result is MetricExportResult.SUCCESS:
            self._note_success()
        else:
            self.note_failure(self._http.problem)
        return result

    def note_failure(self, why: str) -> None:
        """Count an export that failed; the first is told, and then how many, once an hour."""
        self._failed += 1
        self._untold += 1
        now_s = time.monotonic()
        if self._failed == 1:
            logger.warning("OTLP: metrics do not reach %s: %s", self._shown, why)
        elif now_s - self._told_s >= TELL_EVERY_S:
            logger.warning("OTLP: %d more exports to %s failed", self._untold, self._shown)
        else:
            return
        self._untold, self._told_s = 0, now_s

    def _note_success(self) -> None:
        if self._failed:
            logger.info("OTLP: metrics reach %s after %d failures", self._shown, self._failed)
        self._failed = self._untold = 0


def _check_headers() -> None:
    for name in HEADERS:
        given = [part for part in os.environ.get(name, "").split(",") if part.strip()]
        if not all(map(_HEADER.fullmatch, given)):
            msg = f"{name} is not like name=value,name=value with values encoded as in URLs"
            raise GradwatchError(msg)
