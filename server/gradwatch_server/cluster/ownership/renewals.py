"""Which leases run, by when they were seen to be renewed.

The servers take a key away after the bucket's time, which is no node's own: it is that of whoever
made the bucket, or the longest that anyone asked for.
"""

from __future__ import annotations

import time
from collections.abc import Collection


class Renewals:
    """The renewals of all nodes, as one of them saw them."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}  # node -> newest revision, and since when

    def has_run_out(self, node: str, revision: int, lease_s: float | None) -> bool:
        """Note what was read just now of a lease; tell whether it was not renewed in its time.

        Args:
            node: Whose it is.
            revision: That of its key.
            lease_s: How long it lasts; None if its node does not say so: then as long as its key.
        """
        now_s = time.monotonic()
        known, since_s = self._seen.get(node, (0, now_s))
        if revision != known:
            since_s = now_s
        self._seen[node] = revision, since_s
        return lease_s is not None and now_s - since_s >= lease_s

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all others."""
        self._seen = {node: own for node, own in self._seen.items() if node in nodes}
