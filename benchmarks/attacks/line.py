"""A connection of a peer that never waits for answers, and the sessions that it speaks for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import zmq

from benchmarks.attacks.attack import Refused, Stop, Target
from gradwatch_wire import (
    Column,
    Envelope,
    Hello,
    Manifest,
    ProtocolError,
    Record,
    Refuse,
    Stats,
    decode,
    encode,
)


@dataclass(slots=True)
class Session:
    """A session of a peer that never waits for answers."""

    hello: Hello
    id: bytes = field(default_factory=lambda: os.urandom(16))
    seq: int = 0

    def greeting(self) -> bytes:
        return encode(Envelope(session=self.id, record=self.hello))

    def next(self, record: Record) -> bytes:
        self.seq += 1
        return encode(Envelope(session=self.id, seq=self.seq, low=1, record=record))


class Line:
    """A connection to the ingest port, what was refused over it, and when to stop."""

    def __init__(self, target: Target, refused: Refused, stop: Stop) -> None:
        self.target, self.refused, self.stop = target, refused, stop
        self.acked = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(target.endpoint)

    def send(self, message: bytes) -> None:
        """Send as soon as the connection takes it, and take in the answers meanwhile."""
        while not self.stop():
            self._listen()
            try:
                self._socket.send(message, zmq.NOBLOCK)
            except zmq.Again:
                self._socket.poll(20, zmq.POLLOUT)
            else:
                return

    def _listen(self) -> None:
        with suppress(zmq.Again):
            while True:
                answer = self._socket.recv(zmq.NOBLOCK)
                with suppress(ProtocolError):
                    record = decode(answer).record
                    self.refused["REFUSE"] += isinstance(record, Refuse)
                    self.acked = max(self.acked, getattr(record, "acked", 0))

    def wait(self, timeout_ms: int) -> None:
        """Take in answers, once there are some."""
        self._socket.poll(timeout_ms)
        self._listen()

    def close(self) -> None:
        """Count the last answers, and let the connection go."""
        self._socket.poll(200)
        self._listen()
        self._context.destroy(linger=0)


def open_sessions(line: Line, ranks: Sequence[Session], manifest: Manifest) -> None:
    """Say HELLO for each rank, and declare the same layers."""
    for rank in ranks:
        line.send(rank.greeting())
        line.send(rank.next(manifest))


def stats_record(step: int, columns: Mapping[str, Sequence[float]]) -> Stats:
    """Return statistics of the layers of the first manifest."""
    packed = {name: Column.pack("<f8", values) for name, values in columns.items()}
    return Stats(manifest_id=1, step=step, columns=packed)
