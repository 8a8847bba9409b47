"""Whether the clocks of the nodes agree: each writes the time with its lease, and reads theirs.

Alerts are dated by the owner of their run, and tokens of streams by the node that gives them. A
node whose clock is another one's does all else, and nobody can tell which of the two is right: so
it is told of, and refused nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

logger = logging.getLogger(__name__)

APART_S: Final = 60.0
"""How far the clocks of nodes may be apart."""


class Clocks:
    """The clocks of the other nodes beside that of this one.

    Args:
        node: Id of this node.
        now_ns: Returns the time by its clock, nanoseconds since the epoch.
    """

    def __init__(self, node: str, now_ns: Callable[[], int]) -> None:
        self._node = node
        self.now_ns = now_ns
        self._revisions: dict[str, int] = {}
        self._ahead_s: dict[str, float] = {}  # replaced, never changed

    @property
    def fault(self) -> str | None:
        """Whose clock is another one, None if they agree."""
        wrong = {node: own for node, own in self._ahead_s.items() if abs(own) > APART_S}
        if not wrong:
            return None
        node = max(wrong, key=lambda own: abs(wrong[own]))
        how = f"{abs(wrong[node]):.0f} s {'ahead of' if wrong[node] > 0 else 'behind'}"
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return (
            f"the clock of node {node} is {how} that of this one{more}; at most {APART_S:.0f} s "
            "are allowed: have machines set their clocks by NTP, then restart the node that was off"
        )

    @property
    def most_apart_s(self) -> float:
        """How far the one is off that is furthest, seconds."""
        return max(map(abs, self._ahead_s.values()), default=0.0)

    def note(self, node: str, revision: int, told_ns: int) -> None:
        """Note the time that a node wrote.

        Args:
            node: Its id.
            revision: Of what it wrote. The first one that is seen may be old, and says nothing.
            told_ns: The time.
        """
        before = self._revisions.get(node)
        self._revisions[node] = revision
        if node == self._node or before in (None, revision):
            return
        had_fault = self.fault is not None
        self._ahead_s = {**self._ahead_s, node: (told_ns - self.now_ns()) / 1e9}
        if (fault := self.fault) is not None and not had_fault:
            logger.warning("%s", fault)

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all others."""
        self._revisions = {node: own for node, own in self._revisions.items() if node in nodes}
        self._ahead_s = {node: own for node, own in self._ahead_s.items() if node in nodes}
