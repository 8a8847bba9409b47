"""Cost of a training step: with the aggregator alive, dead, killed midway, and stopped.

One process trains a small transformer on the CPU, in blocks of steps. The variants take turns, in
an order that rotates from round to round, and each is compared with the block without gradwatch of
its own round: that cancels the drift of a machine that others use too. The aggregator runs on the
same cores as the training, which is harder on the training than a machine of its own would be.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.harness import Pipe, Worker, aggregator, rss_mb, turns, unused_endpoint, workers
from benchmarks.report import quantile, ratios, show, with_range

RUN: Final = "bench-step"
WITHOUT, ALIVE, DEAD, KILLED, STOPPED = "no gradwatch", "alive", "dead", "killed", "stopped"
VARIANTS: Final = (WITHOUT, ALIVE, DEAD, KILLED, STOPPED)
SIGNALS: Final = {KILLED: ("half", signal.SIGKILL), STOPPED: ("begin", signal.SIGSTOP)}

LAYERS, WIDTH, BATCH, LENGTH = 4, 256, 8, 64
WARMUP_STEPS: Final = 4
FIRST_STEP: Final = 99
"""The first step after those, as the client counts."""

LOOKS: Final = (("", 0), ("weights", 1), ("weights", 100), ("updates", 1), ("updates", 8))
"""Looks at the weights that are compared: `weights_every` or `updates_every`, and its value."""

FILLS: Final = 3
"""How many times over the buffer is filled while the aggregator is stopped."""

FILL_LAYERS: Final = 300
FILL_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Block:
    """Steps to train; `endpoint` is None without gradwatch, the others as in `attach`."""

    endpoint: str | None
    steps: int
    weights_every: int = 0
    updates_every: int = 8


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of each step, and of what gradwatch did within it."""

    steps: list[float]
    calls: list[float]


class Stopwatch:
    """Adds up the time in functions of gradwatch, once where one calls another."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running = False

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._running:
                return function(*args, **kwargs)
            self._running, began = True, time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._running = False
                self.seconds += time.perf_counter() - began

        return wrapper

    def watch(self, watch: Any) -> None:
        """Time the end of the backward pass, `collect`, and what the optimizer's step sets off."""
        at_end = watch._hooks._passes._on_end
        watch._hooks._passes._on_end = lambda: self.timed(at_end())
        watch.collect = self.timed(watch.collect)
        watch._recorder.begin_step = self.timed(watch._recorder.begin_step)
        watch._recorder.report = self.timed(watch._recorder.report)


@dataclass(frozen=True, slots=True)
class Filling:
    """A buffer to fill."""

    endpoint: str
    buffer_bytes: int


def run(*, quick: bool = False, steps: int = 60, rounds: int = 6) -> None:
    """Measure and print."""
    if quick:
        steps, rounds = 4, 1
    _time_steps(steps, rounds)
    _watch_memory((1 if quick else 8) << 20)


def _time_steps(steps: int, rounds: int) -> None:
    times: dict[str, list[Times]] = {name: [] for name in VARIANTS}
    with workers(train, [None]) as (worker,):
        for name in turns(VARIANTS, rounds):
            times[name].append(_measure(worker, name, steps))
    show(
        "step",
        ("aggregator", "step p50 ms", "ratio", "call p50 ms", "p50 share", "p99 share"),
        [_row(name, times[name], times[WITHOUT]) for name in VARIANTS],
        f"Transformer of {LAYERS} layers, width {WIDTH}, batch {BATCH} x {LENGTH}, AdamW; "
        f"{rounds} rounds of {steps} steps of each. dead: never started; killed: SIGKILL at half "
        "of the steps; stopped: SIGSTOP before the first.",
        "ratio: to the step without gradwatch, the median of the rounds (range). call: the end of "
        "the backward pass, collect() and the record, in the training thread; shares: of the p50 "
        "step without gradwatch.",
    )


def time_looks(steps: int = 24, rounds: int = 4) -> None:
    """Compare steps with and without a look at the weights; `scripts/bench client` prints it."""
    times: dict[tuple[str, int], list[Times]] = {look: [] for look in LOOKS}
    with aggregator() as server, workers(train, [None]) as (worker,):
        for look in turns(LOOKS, rounds):
            given = {"weights": 0, "updates": 0} | ({look[0]: look[1]} if look[0] else {})
            worker.tell(Block(server.ingest, steps, given["weights"], given["updates"]))
            times[look].append(_conduct(worker, {}))
    plain = times[LOOKS[0]]
    step_ms = median(quantile(own.steps, 0.5) for own in plain)
    rows = []
    for kind, every in LOOKS[1:]:
        with_look = [
            [call for step, call in enumerate(time.calls) if (FIRST_STEP + step) % every == 0]
            for time in times[kind, every]
        ]
        extra = [
            quantile(own, 0.5) - quantile(without.calls, 0.5)
            for own, without in zip(with_look, plain, strict=True)
        ]
        shares = [100 * each / every / step_ms for each in extra]
        rows.append(
            [
                f"{kind}_every={every}",
                str(sum(map(len, with_look))),
                with_range(extra, ".2f"),
                f"{with_range(shares, '.3f')} %",
            ]
        )
    show(
        "looks at the weights",
        ("attach(...)", "looks", "look ms", "share of a step"),
        rows,
        f"The training of `scripts/bench step`; {rounds} rounds of {steps} steps of each, p50 "
        f"{step_ms:.1f} ms a step. weights_every: digests; updates_every: a sample before the step "
        "and after it.",
        "look: what the calls of a step with one take longer than without, p50 of the round, as "
        "the median of the rounds (range); share: of the p50 step, spread over the steps between.",
    )


def _watch_memory(buffer_bytes: int) -> None:
    with aggregator() as server, workers(fill, [Filling(server.ingest, buffer_bytes)]) as (worker,):
        assert worker.receive() == "attached"
        server.process.send_signal(signal.SIGSTOP)
        worker.tell("go")
        growth_mb: tuple[float, float] = worker.receive()
    show(
        "memory while the aggregator is stopped",
        ("buffer MB", "growth MB when full", f"filled {FILLS} times over"),
        [[f"{each:.1f}" for each in (buffer_bytes / 1e6, *growth_mb)]],
        f"Resident memory of a training process of {FILL_LAYERS} layers. The buffer is what "
        "attach(buffer_bytes=) sets; when it is full the oldest records are given up and counted.",
    )


def _measure(worker: Worker, name: str, steps: int) -> Times:
    """Let the worker train a block; signal the aggregator at the point that the variant names."""
    if name in (WITHOUT, DEAD):
        worker.tell(Block(None if name == WITHOUT else unused_endpoint(), steps))
        return _conduct(worker, {})
    with aggregator() as server:
        worker.tell(Block(server.ingest, steps))
        actions = {
            point: partial(server.process.send_signal, number)
            for variant, (point, number) in SIGNALS.items()
            if variant == name
        }
        return _conduct(worker, actions)


def _conduct(worker: Worker, actions: Mapping[str, Callable[[], None]]) -> Times:
    while True:
        message = worker.receive()
        if isinstance(message, Times):
            return message
        if message in actions:
            actions[message]()
        worker.tell("go")


def _row(name: str, own: Sequence[Times], without: Sequence[Times]) -> list[str]:
    p50 = [quantile(times.steps, 0.5) for times in own]
    base = [quantile(times.steps, 0.5) for times in without]
    calls = [call for times in own for call in times.calls]
    row = [name, f"{median(p50):.1f}", with_range(ratios(p50, base), ".3f")]
    if not calls:
        return [*row, "", "", ""]
    shares = [quantile(calls, share) / median(base) for share in (0.5, 0.99)]
    return [*row, f"{quantile(calls, 0.5):.2f}", *(f"{share:.2%}" for share in shares)]


def _model() -> Any:
    import torch  # noqa: PLC0415 - only the trainer needs it

    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)


def train(_job: None, pipe: Pipe) -> None:
    """Train block after block, until the parent ends us."""
    # Threads that wait for each other sleep, so that other users of the cores disturb less.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch  # noqa: PLC0415

    import gradwatch  # noqa: PLC0415

    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(BATCH, LENGTH, WIDTH)
    while True:
        block: Block = pipe.recv()
        watch, stopwatch = None, Stopwatch()
        if block.endpoint is not None:
            watch = gradwatch.attach(
                model,
                optimizer,
                run=RUN,
                endpoint=block.endpoint,
                every=1,
                first_step=FIRST_STEP - WARMUP_STEPS,
                weights_every=block.weights_every,
                updates_every=block.updates_every,
            )
            stopwatch.watch(watch)
        times = Times([], [])
        for step in range(-WARMUP_STEPS, block.steps):
            if step in (0, block.steps // 2):
                pipe.send("begin" if step == 0 else "half")
                pipe.recv()
            began, stopwatch.seconds = time.perf_counter(), 0.0
            optimizer.zero_grad()
            loss = torch.square(model(batch)).mean()
            loss.backward()
            if watch is not None:
                watch.collect(loss=loss)
            optimizer.step()
            if step >= 0:
                times.steps.append(1e3 * (time.perf_counter() - began))
                if watch is not None:
                    times.calls.append(1e3 * stopwatch.seconds)
        if watch is not None:
            watch.close()
            assert watch.stats()["faults"] == 0, watch.stats()
        pipe.send(times)


def fill(job: Filling, pipe: Pipe) -> None:
    """Fill the buffer several times over; send the growth of the memory when full, and after."""
    import torch  # noqa: PLC0415

    import gradwatch  # noqa: PLC0415

    model = torch.nn.ParameterList(torch.ones(8) for _ in range(FILL_LAYERS))
    for parameter in model:
        parameter.grad = torch.ones(8)
    watch = gradwatch.attach(model, run=RUN, endpoint=job.endpoint, buffer_bytes=job.buffer_bytes)
    _collect_until(watch, lambda stats: stats["collected"] >= 300)
    _collect_until(watch, lambda stats: stats["acked"] >= 300)
    pipe.send("attached")
    pipe.recv()
    before = rss_mb()
    _collect_until(watch, lambda stats: stats["evicted"] > 0)
    full, held = rss_mb() - before, int(watch.stats()["pending"])
    _collect_until(watch, lambda stats: stats["evicted"] >= (FILLS - 1) * held)
    pipe.send((full, rss_mb() - before))
    watch.close()


def _collect_until(watch: Any, reached: Callable[[Any], bool]) -> None:
    deadline = time.monotonic() + FILL_TIMEOUT_S
    while not reached(watch.stats()):
        assert time.monotonic() < deadline, watch.stats()
        for _ in range(32):
            watch.collect()
        time.sleep(0.005)  # the sender thread keeps up, as it does with a real step between
