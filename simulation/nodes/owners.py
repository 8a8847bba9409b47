"""Who owned each partition, whatever is recorded of it; and what befalls the records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from simulation.nodes.faults import NodeFaults
from simulation.nodes.key_value import Bucket


class OwnerHistory:
    """All owners that there were.

    Args:
        records: The bucket in which the newest ones are recorded.
        faults: Whether records are lost just now.
        note: Writes a line of the trace.
    """

    def __init__(self, records: Bucket, faults: NodeFaults, note: Callable[..., None]) -> None:
        self._records = records
        self._faults = faults
        self._note = note
        self._older = records.copy()
        self._owners: dict[int, set[tuple[int, str]]] = defaultdict(set)  # epoch, node

    def add(self, partition: int, epoch: int, node: str) -> None:
        """Note that a node acquired a partition."""
        self._owners[partition].add((epoch, node))

    def is_followed(self, partition: int, epoch: int, node: str) -> bool:
        """Tell whether another owner of a partition came, or has the same epoch.

        That one is possible once the records are lost, and then the ledger takes one of them.
        """
        return any(
            own > epoch or (own == epoch and other != node)
            for own, other in self._owners[partition]
        )

    def lose_records(self) -> None:
        """Lose the records, or get older ones back, if it is their turn; keep some for later."""
        forget = self._faults.scenario.forget
        if self._faults.chance(forget):
            is_lost = self._faults.random.random() < 0.5
            self._note("the owner records are", "lost" if is_lost else "older ones")
            self._records.replace(({}, 0) if is_lost else self._older)
        if self._faults.chance(forget):
            self._older = self._records.copy()
