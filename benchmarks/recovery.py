"""Seconds from the start of a killed aggregator until it is ready again, beside an empty one.

Runs of one rank send as fast as they are acknowledged; the aggregator is a real `gradwatch serve`
and is killed with SIGKILL in the middle of it. When it is ready again it has every run, with a
full window and each acknowledged record.
"""

from __future__ import annotations

import contextlib
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from benchmarks.harness import Aggregator
from benchmarks.report import show, with_range
from benchmarks.senders import COLUMNS, LAYERS, VARIANTS, healthy_columns
from gradwatch_wire import Ack, Column, Envelope, Hello, Manifest, Stats, Welcome, decode, encode
from gradwatch_wire.codec import encode_body, join
from gradwatch_wire.records import LabelValue

WINDOW: Final = 512
IN_FLIGHT: Final = 400
TIMEOUT_S: Final = 120.0


@dataclass(slots=True)
class Session:
    """One run of one rank: what it sent, and what is acknowledged."""

    id: bytes
    run: str
    sent: int = 0
    acked: int = 0


class Crowd:
    """All runs on one socket, for a socket each is not what is measured."""

    def __init__(self, runs: int) -> None:
        numbers = random.Random(1)
        self.sessions = [Session(numbers.randbytes(16), f"run-{i:03}") for i in range(runs)]
        self._by_id = {session.id: session for session in self.sessions}
        names = tuple(f"blocks.{i // 6}.part{i % 6}.weight" for i in range(LAYERS))
        numel = Column.pack("<u8", [1 << 16] * LAYERS)
        self._manifest = encode_body(
            Manifest(
                manifest_id=1, names=names, numel=numel, dtypes=("float32",) * LAYERS,
                columns=COLUMNS, order="forward",
            )
        )  # fmt: skip
        self._columns = healthy_columns(numbers)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def connect(self, endpoint: str) -> None:
        """Say HELLO for every run, and learn how far the aggregator is."""
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(endpoint)
        waiting = set(self._by_id)
        for session in self.sessions:
            hello = Hello(run=session.run, rank=0, world=1)
            self._socket.send_multipart(encode(Envelope(session=session.id, record=hello)))
        while waiting:
            for envelope in self._hear(TIMEOUT_S):
                if isinstance(envelope.record, Welcome):
                    session = self._by_id[envelope.session]
                    assert session.acked <= envelope.record.acked <= session.sent, session
                    session.sent = session.acked = envelope.record.acked
                    waiting.discard(envelope.session)

    def steps(self, count: int, *, wait: bool) -> None:
        """Send steps of every run in turns; to wait is to have all of them acknowledged."""
        for _ in range(count):
            for session in self.sessions:
                self._send(session)
                while sum(s.sent - s.acked for s in self.sessions) > IN_FLIGHT:
                    self._take(TIMEOUT_S)
        while wait and any(s.acked < s.sent for s in self.sessions):
            self._take(TIMEOUT_S)

    def close(self) -> None:
        self._socket.close()

    def _send(self, session: Session) -> None:
        session.sent += 1
        step = session.sent - 2
        kind, body = self._manifest if step < 0 else encode_body(self._stats(step))
        self._socket.send_multipart(join(kind, session.id, session.sent, 1, time.time_ns(), body))

    def _stats(self, step: int) -> Stats:
        labels: dict[str, LabelValue] = {
            "point": "collect",
            "reduction": "mean",
            "scaled": False,
            "path": "cpu_rows",
        }
        columns = self._columns[step % VARIANTS]
        return Stats(
            manifest_id=1, step=step, labels=labels, scalars={"loss": 1.0}, columns=columns
        )

    def _take(self, timeout_s: float) -> None:
        for envelope in self._hear(timeout_s):
            if isinstance(envelope.record, Ack):
                assert not envelope.record.rewind, envelope
                session = self._by_id[envelope.session]
                session.acked = max(session.acked, envelope.record.acked)

    def _hear(self, timeout_s: float) -> Iterator[Envelope]:
        assert self._socket.poll(round(1000 * timeout_s)), "no answer"
        with contextlib.suppress(zmq.Again):
            while True:
                yield decode(self._socket.recv_multipart(zmq.NOBLOCK))


def run(*, quick: bool = False, rounds: int = 5, runs: int = 100) -> None:
    """Measure and print."""
    steps = WINDOW + 8
    if quick:
        runs, steps, rounds = 5, 20, 1
    with tempfile.TemporaryDirectory(prefix="gradwatch-bench-") as name:
        empty = [_empty_start(Path(name) / f"empty-{i}") for i in range(rounds)]
        data = Path(name) / "full" / "data"
        data.parent.mkdir()
        recovered = _kills(data, runs, steps, rounds)
        size = sum(file.stat().st_size for file in data.iterdir()) / 1e6
    ratios = [full / bare for full, bare in zip(recovered, empty, strict=True)]
    show(
        "recovery",
        ("start", "seconds to ready", "ratio"),
        [
            ["empty", with_range(empty, ".2f"), "1"],
            [
                f"after SIGKILL, {runs} runs",
                with_range(recovered, ".2f"),
                with_range(ratios, ".1f"),
            ],
        ],
        f"{runs} runs x {min(steps, WINDOW)} frames x {LAYERS} layers x {len(COLUMNS)} columns; "
        f"{rounds} kills while all runs send as fast as they are acknowledged; "
        f"data directory {size:,.0f} MB.",
        "ready: /readyz answers 200; then each run has its window and each acknowledged record.",
    )


def _empty_start(directory: Path) -> float:
    server = Aggregator(directory / "data")
    server.start()
    server.close()
    return server.started_s


def _kills(data: Path, runs: int, steps: int, rounds: int) -> list[float]:
    crowd, found = Crowd(runs), []
    server = Aggregator(data)
    try:
        server.start()
        crowd.connect(server.ingest)
        crowd.steps(1 + steps, wait=True)  # the manifest first
        for number in range(rounds):
            crowd.steps(5 + 3 * number, wait=False)
            server.stop(signal.SIGKILL)
            crowd.close()
            server.start()
            found.append(server.started_s)
            _check(server, crowd, min(steps, WINDOW))
    finally:
        server.close()
    return found


def _check(server: Aggregator, crowd: Crowd, frames: int) -> None:
    """See that nothing is missing."""
    shown = {own["run"]: own for own in server.json("/runs")}
    for session in crowd.sessions:
        assert session.acked <= shown[session.run]["records"]["stored"] <= session.sent, session
    for session in crowd.sessions[:: max(1, len(crowd.sessions) // 5)]:
        window = server.health(session.run)["window"]
        assert window["steps"] >= frames, window
    crowd.connect(server.ingest)
