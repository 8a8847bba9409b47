"""What sends metrics on by itself, where they are not scraped."""

from __future__ import annotations

from typing import Protocol

from gradwatch_server.api.metrics.source import Source


class MetricsPush(Protocol):
    """Sends metrics to somewhere, in a thread of its own."""

    def start(self, source: Source) -> None:
        """Begin to send what the source gives; called in its event loop."""

    def stop(self) -> None:
        """Send them a last time, and end in a few seconds at most; not called in the event loop."""
