"""The end of a worker that may attach to any node, and goes to another one that answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gradwatch_wire import Envelope
from simulation.network import Socket
from simulation.nodes.faults import NodeFaults

if TYPE_CHECKING:
    from simulation.nodes.node import Node

SILENT_S: Final = 8.0
"""After which a node that says nothing is left."""


class RovingSocket(Socket):
    """Connects to one node after the other."""

    def __init__(self, nodes: Sequence[Node], faults: NodeFaults) -> None:
        self._nodes = nodes
        self._faults = faults
        self._node = faults.random.choice(nodes)
        self._heard_s = 0.0
        super().__init__(self._node.network, faults.random)

    def connect(self, now_s: float, *, reachable: bool) -> None:
        """See whether the node is still there, and go to another one if it is not."""
        is_silent = now_s - self._heard_s > SILENT_S
        moves = self._faults.chance(self._faults.scenario.move)
        if not self._node.is_running or is_silent or moves:
            self.close()
            self._node = self._faults.random.choice(self._nodes)
            self._network = self._node.network
            self._heard_s = now_s
        super().connect(now_s, reachable=reachable and self._node.is_running)

    def receive(self, now_s: float) -> Iterator[Envelope]:
        """Yield what has arrived."""
        for envelope in super().receive(now_s):
            self._heard_s = now_s
            yield envelope
