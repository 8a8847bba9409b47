"""One rank's side of the protocol by hand: it sends what a test tells it to, right or wrong."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final, TypeAlias

import zmq

from gradwatch_wire import Ack, Alert, Envelope, Hello, Record, Refuse, Welcome, decode, encode
from gradwatch_wire.keyfile import ClientKey
from tests.support.records import manifest_of, stats_of
from tests.support.waiting import PATIENCE_S

GREET_EVERY_MS: Final = 500

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"


class Peer:
    """A DEALER socket that speaks records.

    Each is closed after the test that made it.

    Args:
        endpoint: Where the aggregator listens.
        run: Name of the run.
        key: The CURVE key to show; None speaks in the clear.
        context: The ZeroMQ context to use; None makes one of its own.
        hello: Fields of its HELLO, which is of rank 0 of 1 by default.
    """

    open: ClassVar[list[Peer]] = []

    def __init__(
        self,
        endpoint: str,
        run: str = "gpt",
        *,
        key: ClientKey | None = None,
        context: Context | None = None,
        **hello: Any,
    ) -> None:
        self.open.append(self)
        self.session = os.urandom(16)
        settings: dict[str, Any] = {"run": run, "rank": 0, "world": 1}
        self.greeting = Hello(**settings | hello)
        self.seq = 0
        self.alerts: list[dict[str, Any]] = []
        self._context: Context = context or zmq.Context()
        self._owns_context = context is None
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        if key is not None:
            self._socket.curve_serverkey = key.server.encode()
            self._socket.curve_publickey = key.public.encode()
            self._socket.curve_secretkey = key.secret.encode()
        self._socket.connect(endpoint)

    # Sending

    def send_raw(self, message: bytes) -> None:
        self._socket.send(message)

    def send_as(self, seq: int, low: int, record: Record) -> None:
        """Send a record under a number."""
        envelope = Envelope(session=self.session, seq=seq, low=low, record=record)
        self.send_raw(encode(envelope))

    def send(self, record: Record, low: int = 1) -> int:
        """Send the next record in sequence; return its number."""
        self.seq += 1
        self.send_as(self.seq, low, record)
        return self.seq

    def say(self, record: Record) -> Any:
        """Send a record without a number, and return the answer."""
        self.send_as(0, 0, record)
        return self.receive()

    def greet(self) -> Welcome:
        """Say HELLO until it is answered: one is lost with a connection to an earlier engine."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.send_as(0, 0, self.greeting)
            while self._socket.poll(GREET_EVERY_MS):
                answer = self.receive()
                if isinstance(answer, Welcome):
                    return answer
        raise AssertionError("no WELCOME")

    def declare(self, names: Sequence[str] = ("a", "b"), **changes: Any) -> None:
        """Send the manifest."""
        self.send(manifest_of(names, **changes))

    def attach(self, names: Sequence[str] = ("a", "b"), **changes: Any) -> Peer:
        """Greet, and declare the layers."""
        self.greet()
        self.declare(names, **changes)
        self.acked()
        return self

    def stats(self, step: int, l2: Sequence[float] = (1.0, 1.0), **scalars: float) -> int:
        """Send statistics; return their number."""
        return self.send(stats_of(step, l2, **scalars))

    def steps(self, first: int, *norms: float) -> None:
        """Send a step per norm, from *first* on, and wait until they are acknowledged."""
        for step, norm in enumerate(norms, first):
            self.stats(step, (norm, 1.0))
        self.acked()

    def send_hello(self) -> bool:
        """Send HELLO if that needs no waiting: whom the aggregator turned away has no connection.

        Returns:
            Whether it was sent.
        """
        envelope = Envelope(session=self.session, record=self.greeting)
        try:
            self._socket.send(encode(envelope), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    # Receiving

    def receive(self, timeout_s: float = PATIENCE_S) -> Any:
        """Return the next record that is no alert; alerts are kept in `alerts`."""
        deadline = time.monotonic() + timeout_s
        while self._socket.poll(max(0, round(1000 * (deadline - time.monotonic())))):
            if (record := self._next_record()) is not None:
                return record
        raise AssertionError("no answer")

    def received(self) -> list[Record]:
        """Return the records that have arrived and are no alerts."""
        found = []
        while not self.is_silent():
            if (record := self._next_record()) is not None:
                found.append(record)
        return found

    def _next_record(self) -> Record | None:
        envelope = decode(self._socket.recv())
        if envelope.session == bytes(16):  # an answer to what named no session
            assert isinstance(envelope.record, Refuse), envelope
            return None
        assert envelope.session == self.session
        if not isinstance(envelope.record, Alert):
            return envelope.record
        self.alerts.append(dict(envelope.record.alert))
        return None

    def is_silent(self, seconds: float = 0.0) -> bool:
        """Tell whether nothing has arrived, and nothing does within some seconds."""
        return not self._socket.poll(round(seconds * 1000))

    def bad_steps(self, first: int, count: int) -> None:
        """Make *count* alerts that fire and are resolved: 2 events for each 4 steps."""
        for at in range(first, first + 4 * count, 4):
            for step, norm in enumerate([math.nan, 1.0, 1.0, 1.0], at):
                self.stats(step, (norm, 1.0))
            self.acked()

    def acked(self, upto: int | None = None) -> Ack:
        """Wait until all, or all up to a number, is acknowledged."""
        while True:
            answer = self.receive()
            if isinstance(answer, Welcome):  # to a HELLO that was said again, because it was slow:
                # what came in the same batch is acknowledged by it
                answer = Ack(boot_id=answer.boot_id, acked=answer.acked)
            assert isinstance(answer, Ack), answer
            if answer.acked >= (self.seq if upto is None else upto):
                return answer

    def close(self) -> None:
        """Close the socket; what was not sent is lost."""
        self._socket.close()
        if self._owns_context:
            self._context.term()
