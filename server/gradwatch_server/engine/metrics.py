"""Counters and times of the engine since it started."""

from __future__ import annotations

from typing import Final

from prometheus_client import Histogram

LOG_WRITE: Final = (
    "gradwatch_log_write_seconds",
    "Time to append a batch to the log and have it on the disk, retries included.",
)
INGEST_LAG: Final = (
    "gradwatch_ingest_lag_seconds",
    "Time from the first message of a batch to the acknowledgement of all of them.",
)
"""Names of histograms, and what is said of them."""

_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class EngineMetrics:
    """Counters and histograms that only the engine's thread writes."""

    def __init__(self) -> None:
        self.stored = 0
        self.lost = 0
        self.stored_bytes = 0
        self.log_write = Histogram(*LOG_WRITE, buckets=_BUCKETS_S, registry=None)
        self.lag = Histogram(*INGEST_LAG, buckets=_BUCKETS_S, registry=None)
