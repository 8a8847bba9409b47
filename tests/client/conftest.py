"""What the tests of the client share: a small aggregator on a real socket, models, scripts."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
import zmq

import gradwatch
import gradwatch_wire as wire
from gradwatch_server.core.sequence import Outcome, SequenceTracker

R = TypeVar("R")

# Without a GPU, kernels run in Triton's interpreter. It looks here when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

LAUNCHER_VARIABLES = (
    *("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"),
    *("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"),
    *("GRADWATCH_RUN", "GRADWATCH_ENDPOINT", "GRADWATCH_DISABLED", "GRADWATCH_SPILL"),
)


class Aggregator(threading.Thread):
    """A ROUTER with the real ledger behind it, which keeps records in a list in place of a log.

    It answers as `gradwatch serve` does. Attributes are read from the test's thread while it runs.
    """

    def __init__(self, endpoint: str = "tcp://127.0.0.1:*") -> None:
        super().__init__(name="test-aggregator", daemon=True)
        self.boot_id = os.urandom(16)
        self.stored: list[wire.Envelope] = []
        self.hellos: dict[bytes, wire.Hello] = {}  # by session
        self.beats: list[wire.Beat] = []
        self.lost: list[tuple[int, int]] = []
        self.refusal: str | None = None
        self._ledger = SequenceTracker({})
        self._peers: dict[bytes, bytes] = {}  # session -> peer
        self._outbox: deque[wire.Record] = deque()
        self._stopping = threading.Event()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        self._socket.bind(endpoint)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def run(self) -> None:
        while not self._stopping.is_set():
            if self._socket.poll(5):
                peer, *frames = self._socket.recv_multipart()
                self._take(peer, wire.decode(frames))
            while self._outbox:
                record = self._outbox.popleft()
                for session, peer in self._peers.items():
                    self._reply(peer, session, record)
        self._socket.close(linger=0)
        self._context.term()

    def _take(self, peer: bytes, envelope: wire.Envelope) -> None:
        session, record = envelope.session, envelope.record
        self._peers[session] = peer
        if isinstance(record, wire.Hello):
            self.hellos[session] = record
            if self.refusal is not None:
                self._reply(peer, session, wire.Refuse(reason=self.refusal))
                return
            self._ledger.open(session)
            acked = self._ledger.accepted(session)
            self._reply(peer, session, wire.Welcome(boot_id=self.boot_id, acked=acked))
            return
        rewind = False
        if isinstance(record, wire.Beat):
            self.beats.append(record)
        else:
            judgement = self._ledger.check(session, envelope.seq, envelope.low)
            if judgement.gap is not None:
                self.lost.append(judgement.gap)
            if judgement.outcome is Outcome.ACCEPT:
                self.stored.append(envelope)
            rewind = judgement.outcome is Outcome.REWIND
        acked = self._ledger.accepted(session)
        self._reply(peer, session, wire.Ack(boot_id=self.boot_id, acked=acked, rewind=rewind))

    def _reply(self, peer: bytes, session: bytes, record: wire.Record) -> None:
        envelope = wire.Envelope(session=session, record=record)
        self._socket.send_multipart([peer, *wire.encode(envelope)], zmq.NOBLOCK)

    def send(self, record: wire.Record) -> None:
        """Say something to every client."""
        self._outbox.append(record)

    def of(self, kind: type[R]) -> list[R]:
        """Return the stored records of one class, in order."""
        return [e.record for e in list(self.stored) if isinstance(e.record, kind)]

    def stats(self, count: int) -> list[wire.Stats]:
        """Wait for so many STATS and return them; fail if there are more or fewer."""
        wait_until(lambda: len(self.of(wire.Stats)) >= count, f"{count} STATS")
        found = self.of(wire.Stats)
        assert len(found) == count, f"{len(found)} STATS instead of {count}"
        return found

    def layers(self, stats: wire.Stats, column: str = "l2") -> dict[str, float]:
        """Return a column by the names of the manifest that the STATS refer to."""
        manifests = {m.manifest_id: m for m in self.of(wire.Manifest)}
        names = manifests[stats.manifest_id].names
        return dict(zip(names, stats.columns[column].unpack(), strict=True))

    def stop(self) -> None:
        self._stopping.set()
        self.join(10)


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 20) -> None:
    """Return once *condition* holds; fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.005)


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    """`wait_until(condition, what)`."""
    return wait_until


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher and no settings, wherever the tests run."""
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Small tensors gain nothing from several threads, and timings suffer from them."""
    torch.set_num_threads(1)


@pytest.fixture
def new_aggregator() -> Iterator[Callable[..., Aggregator]]:
    """Start a small aggregator, on an endpoint if one is given."""
    made: list[Aggregator] = []

    def start(*endpoint: str) -> Aggregator:
        made.append(Aggregator(*endpoint))
        made[-1].start()
        return made[-1]

    yield start
    for aggregator in made:
        aggregator.stop()


@pytest.fixture
def aggregator(new_aggregator: Callable[..., Aggregator]) -> Aggregator:
    """A small aggregator that runs."""
    return new_aggregator()


@pytest.fixture
def attach(aggregator: Aggregator) -> Iterator[Callable[..., gradwatch.Watch]]:
    """`gradwatch.attach` to the small aggregator; what it made is closed after the test."""
    made: list[gradwatch.Watch] = []

    def attach_here(*arguments: Any, **settings: Any) -> gradwatch.Watch:
        settings = {"run": "test", "endpoint": aggregator.endpoint} | settings
        watch = gradwatch.attach(*arguments, **settings)
        assert isinstance(watch, gradwatch.Watch)
        made.append(watch)
        return watch

    yield attach_here
    for watch in made:
        watch.close()


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """`torch.distributed` with this process alone in it."""
    dist.init_process_group("gloo", f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    gc.collect()  # DDP's reducers let go of the group
    dist.destroy_process_group()


Script = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_script(aggregator: Aggregator, tmp_path: Path) -> Script:
    """Run Python source as a program of its own, attached to the small aggregator by default."""

    def run(source: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(source, encoding="utf-8")
        settings = {"GRADWATCH_ENDPOINT": aggregator.endpoint, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, path, *arguments],
            env=os.environ | settings | environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )

    return run
