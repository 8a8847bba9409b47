"""Senders for the ingest benchmark: the real protocol, with every message packed beforehand.

Packing a record costs a client about as much as the aggregator pays for reading it. On a machine
with few cores the senders would then be what is measured, so they do that before the clock starts.
All of a session's messages stay in memory, which is why `low` is 1 in each and any rewind can be
served.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import zmq

from benchmarks.harness import Pipe
from gradwatch_wire import (
    Ack,
    Bye,
    Column,
    Envelope,
    Hello,
    Manifest,
    Record,
    Refuse,
    Stats,
    Welcome,
    decode,
    encode,
)
from gradwatch_wire.records import LabelValue

LAYERS: Final = 300
COLUMNS: Final = ("l2", "l1", "linf", "zeros", "nans", "infs")
NUMEL: Final = 1 << 16
VARIANTS: Final = 16
"""Different sets of numbers; the steps take turns with them."""

WINDOW: Final = 256
"""Records of a session that may be sent and not acknowledged: the client's own MAX_IN_FLIGHT."""

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
    """Sequenced records of a sender, and `time.monotonic_ns` when the last was acknowledged."""

    records: int
    finished_ns: int


class Session:
    """One rank's session on a socket of its own."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], work: Work) -> None:
        self._id = random.Random(work.rank).randbytes(16)
        self.messages = _pack(self._id, work)
        self._acked = 0
        self._sent = 0
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 100)
        self.socket.connect(work.endpoint)
        hello = Hello(run=work.run, rank=work.rank, world=work.world)
        self.socket.send(encode(Envelope(session=self._id, record=hello)))

    def send_all(self) -> None:
        """Send until all is acknowledged."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._acked < len(self.messages):
            if time.monotonic() > deadline:
                raise TimeoutError("the receiver stopped acknowledging")
            self._fill()
            if self.socket.poll(POLL_MS):
                self.receive_answers()

    def _fill(self) -> None:
        """Send what the window and the socket take."""
        last = min(self._acked + WINDOW, len(self.messages))
        while self._sent < last:
            try:
                self.socket.send(self.messages[self._sent], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._sent += 1

    def receive_answers(self) -> bool:
        has_answer = False
        while True:
            try:
                message = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return has_answer
            has_answer = True
            match decode(message).record:
                case Welcome() | Ack() as answer:
                    self._acked = max(self._acked, answer.acked)
                    if isinstance(answer, Ack) and answer.rewind:
                        self._sent = answer.acked
                case Refuse(reason=reason):
                    raise RuntimeError(reason)


def run_sender(work: Work, pipe: Pipe) -> None:
    """Connect, tell the parent, wait for its go, send everything, report."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        session = Session(context, work)
        if not session.socket.poll(10_000) or not session.receive_answers():
            raise TimeoutError("no WELCOME")
        pipe.send("welcomed")
        pipe.recv()
        session.send_all()
        pipe.send(Sent(len(session.messages), time.monotonic_ns()))
    finally:
        context.destroy(linger=0)


def _pack(session: bytes, work: Work) -> list[bytes]:
    # Averaged gradients are the same on all ranks; were they not, an alert would say so.
    numbers = random.Random(0)
    variants = healthy_columns(numbers)
    numbers = random.Random(work.rank)
    records: list[Record] = [manifest_of(LAYERS)]
    records += [stats_of(step, variants[step % VARIANTS], numbers) for step in range(work.steps)]
    records.append(Bye())
    return [
        encode(Envelope(session=session, seq=seq, low=1, time_ns=time.time_ns(), record=record))
        for seq, record in enumerate(records, 1)
    ]


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
