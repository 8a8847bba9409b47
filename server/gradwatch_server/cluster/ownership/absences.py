"""Which nodes that have no lease are still waited for: theirs may be renewed any moment.

While JetStream chooses a leader nobody can renew a lease, so all of them may run out, and nodes
come back one after the other. What they own stays theirs if those that come first wait.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

RETURN_S: Final = 5.0
"""How long nodes may take to come back after each other, however short leases are: what was asked
while there was no leader is asked again after 2 s (`appending.TRY_S`), and a node that is told then
that its lease ran out has to look, and to write a new one.
"""


class Absences:
    """What one node knows of the others' absence.

    Args:
        lease_s: The time of a lease.
    """

    def __init__(self, lease_s: float) -> None:
        self._patience_s = max(lease_s, RETURN_S)
        self._since_s: dict[str, float] = {}  # node -> when it was seen to be absent

    def awaited(self, absent: Collection[str], steady_s: float) -> frozenset[str]:
        """Return those that are waited for; call it at each look.

        It is no longer than a lease for each, or `RETURN_S` where that is more, and not at all if
        leases could be renewed for so long.

        Args:
            absent: The nodes that own something, and have no lease.
            steady_s: For how long it was possible to renew leases without a gap.
        """
        now_s = time.monotonic()
        self._since_s = {node: self._since_s.get(node, now_s) for node in absent}
        if steady_s >= self._patience_s:
            return frozenset()
        return frozenset(
            node for node, since_s in self._since_s.items() if now_s - since_s < self._patience_s
        )
