"""A small training with two watches: one sends to the cluster, the other to a single process.

Both see the same gradients, so the single process says which alerts there are to be. The time of
`collect()` is taken of both, and its watch is what a busy machine is told by.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Pipe

if TYPE_CHECKING:
    import torch

    import gradwatch

RATE: Final = 20.0
"""Steps per second, each a record."""

POISONED_EVERY: Final = 10
PACE_S: Final = POISONED_EVERY / RATE
"""Time between two alerts of one training: with `clear_steps = 1` each poisoned step is one."""

FIRST_POISONED: Final = 40
"""Rules know what is usual by then."""

POLL_S: Final = 0.01
DRAIN_S: Final = 60.0
"""How long a training waits at its end for what is not acknowledged."""

STOP: Final = "stop"
AGAIN: Final = "again"


@dataclass(frozen=True, slots=True)
class Training:
    """What a training process has to do.

    Args:
        run: Name of its run, in the cluster and in the single process.
        endpoints: Those of the nodes, the one to begin with first.
        single: That of the single process.
    """

    run: str
    endpoints: tuple[str, ...]
    single: str


@dataclass(frozen=True, slots=True)
class Call:
    """One step's two calls of `collect()`.

    Args:
        at_s: When, by `time.monotonic`.
        cluster_ms: What the call took of the watch that sends to the cluster.
        single_ms: What it took of the other one.
    """

    at_s: float
    cluster_ms: float
    single_ms: float


@dataclass(slots=True)
class Trained:
    """What a training process tells at its end.

    Args:
        produced: Records numbered for the cluster.
        produced_single: Records numbered for the single process.
        calls: Each step's calls.
        acked_s: When something was acknowledged by the cluster.
        left: Records that neither acknowledged in time.
        moves: How often it went to another node.
    """

    produced: int = 0
    produced_single: int = 0
    calls: list[Call] = field(default_factory=list)
    acked_s: list[float] = field(default_factory=list)
    left: int = 0
    moves: int = 0


def train(job: Training, pipe: Pipe) -> None:
    """Train until told `STOP`; answer `AGAIN` once a record made after it is acknowledged."""
    _Trainer(job, pipe).train()


class _Trainer:
    def __init__(self, job: Training, pipe: Pipe) -> None:
        import torch  # noqa: PLC0415 - only the trainer needs it

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._pipe = pipe
        self._layers = [torch.nn.Linear(16, 16) for _ in range(8)]
        self._model = torch.nn.Sequential(*self._layers)
        self._cluster = _attach(self._model, job.run, job.endpoints)
        self._single = _attach(self._model, job.run, (job.single,))
        self._told = Trained()
        self._acked = 0
        self._awaited: int | None = None
        self._is_over = False

    def train(self) -> None:
        began_s, step = time.monotonic(), 0
        while not self._is_over:
            self._step(step)
            step += 1
            self._look(began_s + step / RATE)
        self._end()

    def _step(self, step: int) -> None:
        import torch  # noqa: PLC0415

        self._model.zero_grad()
        loss = torch.square(self._model(torch.randn(4, 16))).mean()
        loss.backward()
        if step >= FIRST_POISONED and step % POISONED_EVERY == 0:
            gradient = self._layers[step // POISONED_EVERY % len(self._layers)].weight.grad
            assert gradient is not None
            gradient[0, 0] = float("nan")
        self._told.calls.append(self._collect(step, loss))

    def _collect(self, step: int, loss: torch.Tensor) -> Call:
        """Collect with both, in turns first: the first one reads what the other finds read."""
        at_s = time.monotonic()
        if step % 2:
            cluster_ms = _timed(self._cluster, step, loss)
            return Call(at_s, cluster_ms, _timed(self._single, step, loss))
        single_ms = _timed(self._single, step, loss)
        return Call(at_s, _timed(self._cluster, step, loss), single_ms)

    def _look(self, until_s: float) -> None:
        """Wait, and note meanwhile what is acknowledged and what is asked."""
        while True:
            self._note_acked()
            if self._pipe.poll():
                self._obey(self._pipe.recv())
            left_s = until_s - time.monotonic()
            if left_s <= 0.0:
                return
            time.sleep(min(left_s, POLL_S))

    def _note_acked(self) -> None:
        acked = int(self._cluster.stats()["acked"])
        if acked > self._acked:
            self._acked = acked
            self._told.acked_s.append(time.monotonic())
        if self._awaited is not None and acked > self._awaited:
            self._awaited = None
            self._pipe.send(AGAIN)

    def _obey(self, word: str) -> None:
        if word == AGAIN:
            self._awaited = _produced(self._cluster)
        else:
            self._is_over = True

    def _end(self) -> None:
        until_s = time.monotonic() + DRAIN_S
        while self._num_left() and time.monotonic() < until_s:
            self._look(time.monotonic() + POLL_S)
        self._told.left = self._num_left()
        self._told.moves = int(self._cluster.stats()["moves"])
        for watch in (self._cluster, self._single):
            watch.close()
        self._told.produced = _produced(self._cluster)
        self._told.produced_single = _produced(self._single)
        self._pipe.send(self._told)

    def _num_left(self) -> int:
        return sum(int(watch.stats()["pending"]) for watch in (self._cluster, self._single))


def _attach(model: torch.nn.Module, run: str, endpoints: Sequence[str]) -> gradwatch.Watch:
    import gradwatch  # noqa: PLC0415

    watch = gradwatch.attach(model, run=run, endpoint=endpoints)
    assert isinstance(watch, gradwatch.Watch)
    return watch


def _timed(watch: gradwatch.Watch, step: int, loss: torch.Tensor) -> float:
    began_s = time.perf_counter()
    watch.collect(loss=loss, step=step)
    return 1e3 * (time.perf_counter() - began_s)


def _produced(watch: gradwatch.Watch) -> int:
    """Return the highest number that the client gave a record."""
    return watch._sender.session.source.buffer.last
