"""Simulated ranks: the real protocol over real ZeroMQ, every record packed before it is counted.

A process speaks for many sessions. A record that is asked for again is sent again, and a session
that is not known says HELLO, as the client does.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import zmq

from benchmarks.cluster_load.load import MAX_SOCKETS, PROCESSES, WARM, Load
from benchmarks.harness import Pipe
from benchmarks.senders import VARIANTS, healthy_columns, manifest_of, stats_of
from gradwatch_server.open_files import raise_limit
from gradwatch_wire import Ack, Envelope, Hello, Record, Refuse, Welcome, decode, encode
from gradwatch_wire.records import Beat

POLL_MS: Final = 20
TIMEOUT_S: Final = 400.0
IN_FLIGHT: Final = 8
"""Records of a session that are not acknowledged, at most: else the ranks of a run drift apart."""

HELLO_S: Final = 5.0
"""How long an answer to HELLO is waited for until it is said again."""

Socket: TypeAlias = "zmq.Socket[bytes]"


@dataclass(frozen=True, slots=True)
class Job:
    """What one process sends.

    Args:
        endpoints: Where the nodes listen; connections are dealt to them in turn.
        load: What all processes send together.
        share: Which of them this is: it has every `PROCESSES`th session.
    """

    endpoints: tuple[str, ...]
    load: Load
    share: int


@dataclass(frozen=True, slots=True)
class Sent:
    """What one process did.

    Args:
        num_bytes: Bytes of the records that were acknowledged, once each.
        again: Records that were sent more than once.
        finished_ns: `time.monotonic_ns` when the last one was acknowledged.
    """

    num_bytes: int
    again: int
    finished_ns: int


class Session:
    """One rank. Its manifest and `WARM` steps come first, the others when they are allowed."""

    def __init__(self, socket: Socket, run: int, rank: int, load: Load, packer: Packer) -> None:
        self.id = random.Random(f"{run} {rank}").randbytes(16)
        self.socket = socket
        self.messages = packer.messages(self.id, random.Random(rank))
        self.beat = encode(Envelope(session=self.id, record=Beat(last_step=load.steps)))
        self.allowed = 1 + WARM  # how many of them may be sent by now
        self.acked = self.again = 0
        self._sent = self._highest = 0
        self._is_open = False
        self._hello = encode(
            Envelope(session=self.id, record=Hello(run=f"load-{run}", rank=rank, world=load.ranks))
        )
        self._greeted_s = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether what comes before all that is counted is acknowledged."""
        return self.acked > WARM

    @property
    def is_done(self) -> bool:
        """Whether all its records are acknowledged."""
        return self.acked == len(self.messages)

    def greet(self, now_s: float) -> None:
        """Say HELLO if nothing came of the one before."""
        if not self._is_open and now_s - self._greeted_s > HELLO_S:
            self._greeted_s = now_s
            self.send(self._hello)

    def fill(self) -> bool:
        """Send what is allowed and fits into the window; return False if the socket is full."""
        last = min(self.acked + IN_FLIGHT, self.allowed) if self._is_open else 0
        while self._sent < last:
            if not self.send(self.messages[self._sent]):
                return False
            self.again += self._sent < self._highest
            self._sent += 1
            self._highest = max(self._highest, self._sent)
        return True

    def take(self, record: Record) -> None:
        """Take an answer."""
        match record:
            case Welcome(acked=acked):
                self._is_open = True
                self.acked = max(self.acked, acked)
                self._sent = acked
            case Ack(boot_id=boot_id, acked=acked) if not any(boot_id):
                self._is_open, self._greeted_s = False, -math.inf
                self.greet(time.monotonic())
            case Ack(acked=acked, rewind=rewind):
                self.acked = max(self.acked, acked)
                self._sent = acked if rewind else self._sent
            case Refuse(reason=reason):
                raise RuntimeError(reason)

    def send(self, message: list[bytes]) -> bool:
        """Send a message; return False if the socket takes none now."""
        try:
            self.socket.send_multipart(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


class Packer:
    """Packs records, whose columns are the same for all ranks: averaged gradients are."""

    def __init__(self, load: Load) -> None:
        self._load = load
        columns = healthy_columns(random.Random(0), load.layers)
        losses = random.Random(1)
        self._variants = [stats_of(0, own, losses).columns for own in columns]

    def messages(self, session: bytes, numbers: random.Random) -> list[list[bytes]]:
        """Return the records of a session, in order."""
        steps = 0 if self._load.beats else self._load.steps
        records: list[Record] = [manifest_of(self._load.layers)]
        records.extend(
            stats_of(step, self._variants[step % VARIANTS], numbers) for step in range(steps + WARM)
        )
        return [
            encode(Envelope(session=session, seq=seq, low=1, time_ns=time.time_ns(), record=record))
            for seq, record in enumerate(records, 1)
        ]


class Peers:
    """The sessions of one process."""

    def __init__(self, context: zmq.Context[Socket], job: Job) -> None:
        self._load = job.load
        places = range(job.share, job.load.sessions, PROCESSES)
        sockets = [
            _connected(context, job.endpoints[number % len(job.endpoints)])
            for number in range(min(len(places), MAX_SOCKETS // PROCESSES))
        ]
        packer = Packer(job.load)
        self.sessions = [
            Session(sockets[i % len(sockets)], *divmod(place, job.load.ranks), job.load, packer)
            for i, place in enumerate(places)
        ]
        self._by_id = {own.id: own for own in self.sessions}
        self._ready: dict[Session, None] = {}
        self._poller = zmq.Poller()
        for socket in sockets:
            self._poller.register(socket, zmq.POLLIN)

    def attach(self) -> None:
        """Open all sessions."""
        left, deadline_s = set(self.sessions), time.monotonic() + TIMEOUT_S
        while left:
            now_s = _before(deadline_s)
            for own in left:
                own.greet(now_s)
            left -= {own for own in self._turn() if own.is_open}

    def send(self) -> None:
        """Send all records, each when it is due, and wait until all are acknowledged."""
        due = self._due()
        deadline_s = time.monotonic() + TIMEOUT_S
        left = {own for own in self.sessions if not own.is_done}
        while left:
            _before(deadline_s)
            for own in next(due):
                own.allowed += 1
                self._ready[own] = None
            left -= {own for own in self._turn() if own.is_done}

    def beat(self) -> None:
        """Send all BEATs, each when it is due; nothing of that is numbered."""
        due = self._due()
        num_left = self._load.steps * len(self.sessions)
        while num_left:
            for own in next(due):
                own.send(own.beat)
                num_left -= 1
            self._turn()

    def _due(self) -> Iterator[list[Session]]:
        """Yield, whenever asked, whose turn came since: one session after the other, in turns."""
        total, done, began_s = self._load.steps * len(self.sessions), 0, time.monotonic()
        rate = (self._load.rate or 0.0) * len(self.sessions) / self._load.sessions
        while True:
            passed = int(rate * (time.monotonic() - began_s)) if rate else total
            upto = min(passed, total)
            yield [self.sessions[i % len(self.sessions)] for i in range(done, upto)]
            done = upto

    def _turn(self) -> set[Session]:
        """Take the answers that are there or come soon, and send what may be sent."""
        answered = set()
        for socket, _ in self._poller.poll(POLL_MS):
            for envelope in _answers(socket):
                own = self._by_id[envelope.session]
                own.take(envelope.record)
                answered.add(own)
        self._ready |= dict.fromkeys(answered)
        self._ready = {own: None for own in self._ready if not own.fill()}
        return answered


def run_peers(job: Job, pipe: Pipe) -> None:
    """Attach, tell the parent, wait for its go, send everything, report."""
    raise_limit()
    context: zmq.Context[Socket] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    try:
        peers = Peers(context, job)
        peers.attach()
        pipe.send("attached")
        pipe.recv()
        (peers.beat if job.load.beats else peers.send)()
        finished_ns = time.monotonic_ns()
        messages = [message for own in peers.sessions for message in own.messages[1 + WARM :]]
        pipe.send(
            Sent(
                num_bytes=sum(len(frame) for message in messages for frame in message),
                again=sum(own.again for own in peers.sessions),
                finished_ns=finished_ns,
            )
        )
    finally:
        context.destroy(linger=0)


def _connected(context: zmq.Context[Socket], endpoint: str) -> Socket:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 100)
    socket.connect(endpoint)
    return socket


def _answers(socket: Socket) -> Iterator[Envelope]:
    while True:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        yield decode(frames)


def _before(deadline_s: float) -> float:
    """Return the time.

    Raises:
        TimeoutError: If it is past the deadline.
    """
    now_s = time.monotonic()
    if now_s > deadline_s:
        msg = f"records were not acknowledged within {TIMEOUT_S:g} s"
        raise TimeoutError(msg)
    return now_s
