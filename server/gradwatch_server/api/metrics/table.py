"""The table of all metrics, and its form in docs/metrics.md."""

from __future__ import annotations

from typing import Final

from gradwatch_server.api.metrics import aggregator, notifications, runs

METRICS: Final = (
    *aggregator.METRICS,
    *runs.METRICS,
    *notifications.METRICS,
)
"""Every metric of gradwatch, in the order of the documentation."""

TABLE: Final = "<!-- The table of metrics, written by scripts/docs. -->\n"
"""Where the table stands in docs/metrics.md."""


def table() -> str:
    """Return all metrics as a table in Markdown."""
    rows = ["| metric | type | labels | what it is |", "|---|---|---|---|"]
    for own in METRICS:
        labels = ", ".join(f"`{label}`" for label in own.labels)
        rows.append(f"| `{own.name}` | {own.type} | {labels} | {own.what} |")
    return "\n".join(rows) + "\n"
