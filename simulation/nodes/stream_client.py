"""The stream as one node reaches it: without an answer now and then, whatever became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradwatch_server.storage.store import StorageError
from simulation.clock import Clock
from simulation.nodes.faults import NodeFaults
from simulation.nodes.stream import LATE_S, Append, ReplicatedStream, Stored


class StreamClient:
    """One node's way to the stream."""

    def __init__(
        self,
        stream: ReplicatedStream,
        node: int,
        faults: NodeFaults,
        clock: Clock,
        point: Callable[[str], None],
    ) -> None:
        self._stream = stream
        self._node = node
        self._faults = faults
        self._clock = clock
        self._point = point

    def append(self, append: Append) -> int | None:
        """Write a message; return its sequence, None if another one is the last of its subject.

        Raises:
            StorageError: If no answer came: it may be written, or be written later.
        """
        self._point("before an append")
        self._reach()
        faults = self._faults
        if not faults.has_leader:
            self._send_unanswered(append, ("lost", "late"))
        if faults.chance(faults.scenario.unanswered):
            self._send_unanswered(append, ("lost", "late", "written"))
        seq = self._stream.apply(append)
        self._point("after an append")
        return seq

    def _send_unanswered(self, append: Append, ways: Sequence[str]) -> None:
        way = self._faults.random.choice(ways)
        self._faults.note("an append to", append.subject, "is not answered:", way)
        if way == "written":
            self._stream.apply(append)
        elif way == "late":
            late_s = self._faults.random.random() * LATE_S
            self._stream.apply_later(append, self._clock.now_s + late_s)
        self._point("no answer to an append")
        raise StorageError("the stream does not answer")

    def last(self, subject: str) -> Stored | None:
        """Return the last message of a subject."""
        self._reach_leader()
        return self._stream.last(subject)

    def read(self, subject: str, after: int = 0) -> Sequence[Stored]:
        """Return the messages of a subject after a sequence."""
        self._reach_leader()
        return self._stream.read(subject, after)

    def _reach(self) -> None:
        if not self._faults.reaches_nats(self._node):
            raise StorageError("NATS cannot be reached")

    def _reach_leader(self) -> None:
        self._reach()
        if not self._faults.has_leader:
            raise StorageError("the stream has no leader")
