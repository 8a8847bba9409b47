"""What sends metrics on by itself, where they are not scraped."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gradwatch_server.api.metrics.source import Source
from gradwatch_server.errors import GradwatchError


class MetricsPush(Protocol):
    """Sends metrics to somewhere, in a thread of its own."""

    def start(self, source: Source) -> None:
        """Begin to send what the source gives; called in its event loop."""

    def stop(self) -> None:
        """Send them a last time, and end in a few seconds at most; not called in the event loop."""


def make_push(endpoint: str | None, interval_s: float, data: Path) -> MetricsPush | None:
    """Return what sends metrics to a collector, None where none is named.

    Args:
        endpoint: Its address.
        interval_s: How often they are sent.
        data: The data directory.

    Raises:
        GradwatchError: If the libraries for it are missing, or what it asks for is malformed.
    """
    if endpoint is None:
        return None
    try:
        from gradwatch_server.api.metrics.otlp import OtlpPush  # noqa: PLC0415 - an extra's
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("opentelemetry", "requests"):
            raise
        msg = "otlp_endpoint needs OpenTelemetry's libraries; run: pip install 'gradwatch[otlp]'"
        raise GradwatchError(msg) from error
    return OtlpPush(endpoint, interval_s, data)
