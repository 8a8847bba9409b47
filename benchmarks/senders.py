"""Senders for the ingest benchmark: the client's own session, with every record packed beforehand.

Packing a record costs a client about as much as the aggregator pays for reading it. On a machine
with few cores the senders would then be what is measured, so they do that before the clock starts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import zmq

from benchmarks.harness import Pipe
from gradwatch_wire import Bye, Column, Hello, Manifest, Stats, decode
from gradwatch_wire.records import LabelValue
from gradwatch_wire.session.driver import send_due, send_hello
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session

LAYERS: Final = 300
COLUMNS: Final = ("l2", "l1", "linf", "zeros", "nans", "infs")
NUMEL: Final = 1 << 16
VARIANTS: Final = 16
"""Different sets of numbers; the steps take turns with them."""

MAX_BYTES: Final = 1 << 32
"""Records that a sender keeps: all of them."""

_LABELS: Final[Mapping[str, LabelValue]] = {
    "point": "collect",
    "reduction": "mean",
    "scaled": False,
    "path": "rows",
}

POLL_MS: Final = 20
TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Work:
    """A sender process: where it sends, the run, its rank of so many, and STATS records to send."""

    endpoint: str
    run: str
    rank: int
    world: int
    steps: int


@dataclass(frozen=True, slots=True)
class Sent:
    """Sequenced records of a sender, how often one was sent, and when the last was acknowledged.

    `finished_ns` is of `time.monotonic_ns`.
    """

    records: int
    sent: int
    finished_ns: int


class Sender:
    """One rank's session on a socket of its own, by the client's own code: it keeps to its window.

    All of its records are packed by then.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], work: Work) -> None:
        hello = Hello(run=work.run, rank=work.rank, world=work.world)
        self.session = Session(random.Random(work.rank).randbytes(16), hello, _packed(work))
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 100)
        self.socket.connect(work.endpoint)

    def greet(self) -> None:
        """Send HELLO until WELCOME is there."""
        send_hello(self.session, self._send, time.monotonic())
        if not self.socket.poll(10_000):
            raise TimeoutError("no WELCOME")
        self._receive()

    def send_all(self) -> None:
        """Send until all is acknowledged."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not self.session.is_drained:
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise TimeoutError("the receiver stopped acknowledging")
            send_due(self.session, self._send, now_s)
            if self.socket.poll(POLL_MS):
                self._receive()
        if self.session.refused:
            raise RuntimeError(self.session.refused)

    def _send(self, message: bytes) -> bool:
        try:
            self.socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _receive(self) -> None:
        while True:
            try:
                message = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.session.receive(decode(message), time.monotonic())


def run_sender(work: Work, pipe: Pipe) -> None:
    """Connect, tell the parent, wait for its go, send everything, report."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        sender = Sender(context, work)
        sender.greet()
        pipe.send("welcomed")
        pipe.recv()
        records = sender.session.source.pending
        sender.send_all()
        sent = sender.session.counters["sent"]
        pipe.send(Sent(records, sent, time.monotonic_ns()))
    finally:
        context.destroy(linger=0)


def _packed(work: Work) -> Outbox:
    # Averaged gradients are the same on all ranks; were they not, an alert would say so.
    variants = healthy_columns(random.Random(0))
    numbers = random.Random(work.rank)
    outbox = Outbox(MAX_BYTES)
    outbox.append(manifest_of(LAYERS), time.time_ns())
    for step in range(work.steps):
        outbox.append(stats_of(step, variants[step % VARIANTS], numbers), time.time_ns())
    outbox.append(Bye(), time.time_ns())
    return outbox


def manifest_of(layers: int) -> Manifest:
    return Manifest(
        manifest_id=1,
        names=tuple(f"blocks.{i // 6}.part{i % 6}.weight" for i in range(layers)),
        numel=Column.pack("<u8", [NUMEL] * layers),
        dtypes=("float32",) * layers,
        columns=COLUMNS,
        order="forward",
    )


def stats_of(step: int, columns: Mapping[str, Column], numbers: random.Random) -> Stats:
    """Return the record of a step, with a loss in which nothing is unusual."""
    return Stats(
        manifest_id=1,
        step=step,
        labels=_LABELS,
        scalars={"loss": numbers.gauss(2.0, 0.05), "lr": 1e-3, "step_time_s": 0.1},
        columns=columns,
    )


def healthy_columns(numbers: random.Random, layers: int = LAYERS) -> list[dict[str, Column]]:
    """Return the columns of some steps in which nothing is unusual.

    No alert fires then: those have a cost of their own.
    """
    usual = [numbers.lognormvariate(-1, 1) for _ in range(layers)]
    return [_columns(numbers, usual) for _ in range(VARIANTS)]


def _columns(numbers: random.Random, usual: Sequence[float]) -> dict[str, Column]:
    l2 = [norm * numbers.lognormvariate(0, 0.1) for norm in usual]
    l1 = [norm * 200 for norm in l2]
    linf = [norm / 10 for norm in l2]
    zeros = [numbers.randrange(NUMEL // 100) for _ in usual]
    none = [0] * len(usual)
    return {
        "l2": Column.pack("<f8", l2),
        "l1": Column.pack("<f8", l1),
        "linf": Column.pack("<f8", linf),
        "zeros": Column.pack("<u4", zeros),
        "nans": Column.pack("<u4", none),
        "infs": Column.pack("<u4", none),
    }
