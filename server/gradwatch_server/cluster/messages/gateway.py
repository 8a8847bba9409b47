"""The ingest socket of a node: what arrives goes on to the partition of its run, answers come back.

It has no engine behind it. What cannot be sent on is dropped as if it had never come: the client
keeps it, and is made to say HELLO, whose answer says from where it is to be sent again.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import zmq

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.cluster.messages.parcels import Answer, Parcel
from gradwatch_server.cluster.messages.sessions import Sessions
from gradwatch_server.cluster.ownership.plan import partition_of
from gradwatch_server.engine.intake import NO_BOOT
from gradwatch_server.ingest.inbox import bytes_of
from gradwatch_server.ingest.message import Arrived
from gradwatch_server.ingest.socket import Ingest
from gradwatch_server.keys import Keys
from gradwatch_wire import Ack, Hello
from gradwatch_wire.codec import place_of
from gradwatch_wire.records import Kind

logger = logging.getLogger(__name__)

POLL_MS: Final = 200
"""Longest wait for a message: how soon the end is seen."""

BATCH_BYTES: Final = 64 << 10
"""Messages to one partition that go together at most."""

LOOK_S: Final = 1.0
"""How often it is looked which sessions wait in vain."""

MAX_ANSWER_BYTES: Final = 64 << 20
"""Answers that may wait for the socket; what is beyond is dropped, as one to a full queue is."""

_HELLO_HEAD: Final = bytes([0x96, Kind.HELLO])


class Carrier(Protocol):
    """Takes messages to the owner of their partition, wherever that is."""

    def carry(self, partition: int, parcels: list[Parcel]) -> bool:
        """Send on what came for a partition; return False if it certainly does not arrive."""


class Gateway(Ingest):
    """A bound ROUTER, which a thread of its own reads from `start` until `stop`.

    Args:
        endpoint: As in `Ingest`, which raises the same.
        partitions: How many there are.
        carrier: Where messages go.
        keys: As in `Ingest`.
        budget_use: Likewise.
        on_failure: Called from the thread if it fails and ends.
    """

    def __init__(
        self,
        endpoint: str,
        partitions: int,
        carrier: Carrier,
        keys: Keys | None = None,
        budget_use: BudgetUse | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(endpoint, keys, budget_use)
        self._on_failure = on_failure
        self._partitions = partitions
        self._carrier = carrier
        self._sessions = Sessions()
        self._batches: dict[int, list[Parcel]] = {}
        self._batch_bytes: dict[int, int] = {}
        self._answers: deque[Answer] = deque()
        self._answer_bytes = 0
        self._answers_lock = threading.Lock()
        self._stopping = threading.Event()
        self._looked_s = 0.0
        self._waker, self._woken = socket.socketpair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self._poller.register(self._woken, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="gradwatch-gateway", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Tell whether it reads."""
        return self._thread.is_alive()

    def deliver(self, answers: Iterable[Answer]) -> None:
        """Have answers sent to their clients; from any thread."""
        with self._answers_lock:
            for answer in answers:
                if self._answer_bytes > MAX_ANSWER_BYTES:
                    return
                self._answers.append(answer)
                self._answer_bytes += answer.num_bytes
        self._wake()

    def stop(self) -> None:
        """Read no more, and close the port."""
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        self.close()
        self._waker.close()
        self._woken.close()

    def _wake(self) -> None:
        try:
            self._waker.send(b"\0")
        except OSError:  # it is woken already, or has ended
            return

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._read(POLL_MS)
                self._flush()
                self._send_answers()
                self._look(time.monotonic())
                self._report()
        except Exception:
            logger.exception("the gateway failed and stops")
            self._on_failure()

    def _wait(self, timeout_ms: int) -> bool:
        is_there = super()._wait(timeout_ms)
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        return is_there

    def _put(self, peer: bytes, arrived: Arrived, now_s: float) -> int:
        """Send a message on; return what it took in memory."""
        client, frames = arrived
        body = b"".join(frames[1:2])
        session, seq = place_of(body)
        route = self._sessions.find(session)
        if route is None or body.startswith(_HELLO_HEAD):
            message = self._check(client, peer, frames, now_s)
            if message is None:
                return bytes_of(arrived)
            record = message.envelope.record
            if isinstance(record, Hello):
                partition = partition_of(record.run, self._partitions)
                route = self._sessions.open(session, partition, peer)
            elif route is None:
                self.reply(peer, session, Ack(boot_id=NO_BOOT, acked=0))
                return bytes_of(arrived)
        assert route is not None  # noqa: S101 - a HELLO has one now
        self._sessions.note_sent(session, peer, seq, now_s)
        self._add(route.partition, Parcel(peer, frames, client))
        return bytes_of(arrived)

    def _add(self, partition: int, parcel: Parcel) -> None:
        self._batches.setdefault(partition, []).append(parcel)
        num_bytes = self._batch_bytes.get(partition, 0) + parcel.num_bytes
        self._batch_bytes[partition] = num_bytes
        if num_bytes >= BATCH_BYTES:
            self._send_batch(partition)

    def _flush(self) -> None:
        for partition in list(self._batches):
            self._send_batch(partition)

    def _send_batch(self, partition: int) -> None:
        parcels = self._batches.pop(partition)
        del self._batch_bytes[partition]
        if self._carrier.carry(partition, parcels):
            return
        for parcel in parcels:
            self._sessions.note_lost(place_of(b"".join(parcel.frames[1:2]))[0])

    def _send_answers(self) -> None:
        with self._answers_lock:
            answers, self._answers = self._answers, deque()
            self._answer_bytes = 0
        now_s = time.monotonic()
        for answer in answers:
            if answer.acked is not None:
                self._sessions.note_acked(answer.session, answer.acked, now_s)
            if not self._send(answer.peer, answer.frames):
                self._tell_gone(answer)

    def _tell_gone(self, answer: Answer) -> None:
        """Tell the owner that a connection is gone, so that another may speak for its session."""
        route = self._sessions.find(answer.session)
        if route is not None:
            self._add(route.partition, Parcel(answer.peer, []))

    def _look(self, now_s: float) -> None:
        """Ask those to say HELLO of whom something was lost on the way."""
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        for session, route in self._sessions.stalled(now_s):
            self.reply(route.peer, session, Ack(boot_id=NO_BOOT, acked=0))
