"""The watch that does nothing: what `attach` returns when gradwatch is switched off."""

from __future__ import annotations

from typing import Self


class NullWatch:
    """Has the interface of `Watch` and costs nothing."""

    @property
    def run(self) -> str:
        """The empty name: there is no run."""
        return ""

    @property
    def url(self) -> None:
        """None: nothing is to be seen."""
        return

    @property
    def http_url(self) -> None:
        """None: no aggregator is asked."""
        return

    @property
    def endpoint(self) -> str:
        """The empty text: nothing is sent."""
        return ""

    def collect(
        self,
        *,
        loss: object = None,
        step: object = None,
        batch_size: object = None,
        micro_batch: object = False,
    ) -> None:
        """Do nothing."""

    def annotate(self, *, loss: object = None, step: object = None, batch: object = None) -> None:
        """Do nothing."""

    def is_bad(self, *, wait: object = False) -> None:  # noqa: ARG002 - as that of `Watch`
        """Return None: nothing is looked at."""
        return

    def drop_step(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def disable(self) -> None:
        """Do nothing."""

    def stats(self) -> dict[str, int | str]:
        """Return the counters of a watch that never did anything."""
        names = ("dropped", "oversize", "sent", "acked", "evicted", "pending")
        more = ("spilled", "spill_dropped", "replayed", "moves")
        counters: dict[str, int | str] = {"pace": "", "collected": 0, "bad_step": -1}
        counters |= dict.fromkeys((*names, *more), 0)
        return counters | {"endpoint": "", "faults": 0, "last_error": ""}

    def __repr__(self) -> str:
        return "<gradwatch.NullWatch>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""
