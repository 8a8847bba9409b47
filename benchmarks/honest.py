"""An honest sender at a steady pace and an honest reader of `/health`, timed by their schedule.

A time is counted from when a record or request was due, not from when it could be sent at last: a
sender that is held up for two seconds has forty late records, and not one.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import zmq

from benchmarks.harness import Pipe
from gradwatch_wire import Ack, Bye, Hello, ProtocolError, Record, Welcome, decode
from gradwatch_wire.session.driver import SessionDriver
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session, SessionPhase
from tests.support.records import manifest_of, stats_of

LAYERS: Final = ("embed", "block.0", "block.1", "head")
RANKS: Final = 8
RATE: Final = 20.0
"""Records of each rank, and requests, a second."""

BUFFER_BYTES: Final = 8 << 20
PATIENCE_S: Final = 15.0
"""How long anything may take until it counts as not done."""


@dataclass(slots=True)
class Times:
    """Milliseconds from when something was due until it was done."""

    acked: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Told:
    """Report of the honest process at its end, of all ranks together."""

    sessions: tuple[bytes, ...]
    produced: int
    refused: str
    unanswered: int  # requests that failed or were answered with an error


class Sender:
    """A session of our own client over a socket, with the time that each record took."""

    def __init__(self, endpoint: str, run: str, rank: int = 0, world: int = 1) -> None:
        hello = Hello(run=run, rank=rank, world=world)
        self.session = Session(os.urandom(16), hello, Outbox(BUFFER_BYTES))
        self.times: list[float] = []
        self._driver = SessionDriver(self.session, time.monotonic())
        self._due: dict[int, float] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.connect(endpoint)
        self.append(manifest_of(LAYERS), time.monotonic())

    @property
    def produced(self) -> int:
        return self.session.source.buffer.last

    def append(self, record: Record, due_s: float) -> None:
        """Put a record in the send buffer."""
        self.session.source.append(record, time.time_ns())
        self._due[self.produced] = due_s

    def work(self) -> None:
        """Send what is due, and receive what is there."""
        self._driver.send(self._send, time.monotonic())
        while self.socket.poll(0):
            self._receive()

    def drain(self, timeout_s: float) -> None:
        """Send and receive until everything is acknowledged, but not for ever."""
        end = time.monotonic() + timeout_s
        while not self.session.is_over and time.monotonic() < end:
            self.work()
            self.socket.poll(20)

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _send(self, message: bytes) -> bool:
        with suppress(zmq.Again):
            self.socket.send(message, zmq.NOBLOCK)
            return True
        return False

    def _receive(self) -> None:
        envelope = decode(self.socket.recv())
        now_s = time.monotonic()
        self._driver.receive(envelope, now_s)
        if isinstance(envelope.record, (Ack, Welcome)):
            for seq in [seq for seq in self._due if seq <= envelope.record.acked]:
                self.times.append(1e3 * (now_s - self._due.pop(seq)))

    def cut(self) -> list[float]:
        """Return the times since the last cut; what still waits counts as long as it waited."""
        now_s = time.monotonic()
        found = self.times + [1e3 * (now_s - due) for due in self._due.values()]
        self.times, self._due = [], {}
        return found


class Reader(threading.Thread):
    """Asks for `/health` over a connection that is kept."""

    def __init__(self, url: str, run: str) -> None:
        super().__init__(daemon=True)
        self.unanswered = 0
        self.times: list[float] = []
        self._address = url.partition("//")[2]
        self._path = f"/runs/{run}/health"
        self._stopping = threading.Event()

    def run(self) -> None:
        """Ask until stopped."""
        connection = http.client.HTTPConnection(self._address, timeout=PATIENCE_S)
        due_s = time.monotonic()
        while not self._stopping.wait(max(0.0, due_s - time.monotonic())):
            if not self._ask(connection):
                self.unanswered += 1
                connection.close()  # and the next request opens it again
            self.times.append(1e3 * (time.monotonic() - due_s))
            due_s += 1.0 / RATE

    def _ask(self, connection: http.client.HTTPConnection) -> bool:
        try:
            connection.request("GET", self._path)
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            return False
        return response.status == http.client.OK

    def stop(self) -> None:
        """End, after the request that is on its way."""
        self._stopping.set()
        self.join(2 * PATIENCE_S)

    def cut(self) -> list[float]:
        """Return the times since the last cut."""
        found, self.times = self.times, []
        return found


@dataclass(frozen=True, slots=True)
class Place:
    """Where an aggregator is, and the run that is sent there."""

    endpoint: str
    url: str
    run: str


def work(place: Place, pipe: Pipe) -> None:
    """Send and read; at each message of the parent report the times since the one before.

    The message `None` ends it: the last records are sent, and what became of all is told.
    """
    senders = [Sender(place.endpoint, place.run, rank, RANKS) for rank in range(RANKS)]
    for sender in senders:
        sender.drain(PATIENCE_S)
    reader = Reader(place.url, place.run)
    _wait_until_shown(reader)
    reader.start()

    def cut() -> list[float]:
        return [time_ms for sender in senders for time_ms in sender.cut()]

    cut()
    pipe.send("ready")
    _send_steadily(senders, pipe, lambda: pipe.send(Times(cut(), reader.cut())))
    reader.stop()
    for sender in senders:
        sender.append(Bye(), time.monotonic())
    for sender in senders:
        sender.drain(PATIENCE_S)
    sessions = tuple(sender.session.id for sender in senders)
    produced = sum(sender.produced for sender in senders)
    refused = "; ".join(filter(None, (sender.session.refused for sender in senders)))
    pipe.send(Told(sessions, produced, refused, reader.unanswered))
    for sender in senders:
        sender.close()


def _wait_until_shown(reader: Reader) -> None:
    connection = http.client.HTTPConnection(reader._address, timeout=PATIENCE_S)
    end = time.monotonic() + PATIENCE_S
    while not reader._ask(connection) and time.monotonic() < end:
        time.sleep(0.05)
    connection.close()


def _send_steadily(senders: Sequence[Sender], pipe: Pipe, report: Callable[[], None]) -> None:
    poller = zmq.Poller()
    for sender in senders:
        poller.register(sender.socket, zmq.POLLIN)
    step, due_s = 0, time.monotonic()
    while True:
        for sender in senders:
            norm = 1.0 + step % 7 / 10  # equal norms raise `repeated_gradient`
            sender.append(stats_of(step, [norm] * len(LAYERS), loss=norm), due_s)
        step, due_s = step + 1, due_s + 1.0 / RATE
        while True:
            for sender in senders:
                sender.work()
            left_ms = round(1e3 * (due_s - time.monotonic()))
            if left_ms <= 0:
                break
            poller.poll(left_ms)
        if pipe.poll():
            if pipe.recv() is None:
                return
            report()


def newcomer(endpoint: str, run: str, timeout_s: float = PATIENCE_S) -> str:
    """Open a run that nobody has heard of; return why that failed, nothing if it did not."""
    sender = Sender(endpoint, run)
    try:
        sender.append(Bye(), time.monotonic())
        sender.drain(timeout_s)
        if sender.session.phase is SessionPhase.REFUSED:
            return sender.session.refused
        return "" if sender.session.is_over else f"no answer in {timeout_s:g} s"
    except ProtocolError as error:
        return str(error)
    finally:
        sender.close()
