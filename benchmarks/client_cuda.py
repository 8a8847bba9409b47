"""What the client's numbers cost on a GPU: device time, host time, syncs, and a step's share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor, nn

import gradwatch
from benchmarks.client_cases import CONTEXT, LAYERS, VOCABULARY, WIDTH, Case, cases, gradients_of
from benchmarks.client_peers import COLLECT, NORMS, RUN, SIX, unused_endpoint
from benchmarks.harness import Pipe, workers
from benchmarks.report import quantile, show, with_range
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import MEASURED_COLUMNS

AIM_DEVICE, AIM_STEP = 1.25, "1 %"
READ: Final = "one read of the bytes"
BATCH: Final = 8
WARMUP_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds on the device, microseconds on the host, and whether the call waited."""

    device: list[float]
    host: list[float]
    waited: bool


def run(*, quick: bool = False, rounds: int = 50) -> None:
    """Measure and print."""
    rounds = 3 if quick else rounds
    aims = ("150", "1000", "150")
    rows: list[list[str]] = []
    for case, aim in zip(cases(quick=quick), aims, strict=True):
        with workers(take_costs, [(case, rounds)]) as (worker,):
            costs: dict[str, Cost] = worker.receive()
        rows += [[case.title, "", "", "", "", ""], *_rows(costs, aim)]
    show(
        f"client, {torch.cuda.get_device_name()}",
        ("what", "device ms", "x one read", "host p50 us", "aim us", "waits"),
        rows,
        f"{rounds} rounds (range). One read: sum() over one tensor of as many bytes; aim "
        f"{AIM_DEVICE:g}. Host: until the call returns. waits: whether "
        'set_sync_debug_mode("error") found a wait for the device in it.',
    )
    with workers(take_steps, [2 if quick else 10]) as (worker,):
        without, own = worker.receive()
    shares = [a / b - 1 for a, b in zip(own, without, strict=True)]
    show(
        "client, a step of GPT-2 124M in bfloat16",
        ("training", "step ms", "overhead", "aim"),
        [
            ["no gradwatch", with_range(without, ".2f"), "", ""],
            ["gradwatch, nobody listening", with_range(own, ".2f"), _percent(shares), AIM_STEP],
        ],
        f"Batch {BATCH} x {CONTEXT}, fused AdamW; blocks of steps that take turns.",
    )


def _percent(shares: Sequence[float]) -> str:
    return with_range([100 * share for share in shares], ".2f") + " %"


def _rows(costs: dict[str, Cost], aim: str) -> list[list[str]]:
    base = median(costs[READ].device)
    return [
        [
            f"  {name}",
            with_range(cost.device, ".3f"),
            f"{median(cost.device) / base:.2f}",
            f"{quantile(cost.host, 0.5):.0f}",
            "" if name == READ else aim,
            "yes" if cost.waited else "no",
        ]
        for name, cost in costs.items()
    ]


def take_costs(job: tuple[Case, int], pipe: Pipe) -> None:
    """Send the cost of each variant."""
    case, rounds = job
    model = case.model("cuda")
    gradients = gradients_of(model)
    one = torch.ones(sum(g.numel() for g in gradients), dtype=case.dtype, device="cuda")
    with gradwatch.attach(model, run=RUN, endpoint=unused_endpoint()) as watch:
        calls: dict[str, Callable[[], Any]] = {
            READ: one.sum,
            NORMS: lambda: statistics(gradients, ("l2",)),
            SIX: lambda: statistics(gradients, MEASURED_COLUMNS),
            COLLECT: watch.collect,
        }
        costs = {name: Cost([], [], _waits(call)) for name, call in calls.items()}
        # collect() does not raise: a wait in it is counted as a fault.
        if watch.stats()["faults"]:
            costs[COLLECT] = Cost([], [], waited=True)
        for _ in range(rounds):
            for name, call in calls.items():
                device_ms, host_us = _time(call)
                costs[name].device.append(device_ms)
                costs[name].host.append(host_us)
    pipe.send(costs)


def _waits(call: Callable[[], Any]) -> bool:
    call()  # compiles its kernels
    torch.cuda.synchronize()
    with _no_waiting():
        try:
            call()
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            return True
    return False


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _time(call: Callable[[], Any]) -> tuple[float, float]:
    """Return milliseconds on the device, without its waiting for the host, and host microseconds.

    The device is kept busy until the call has enqueued its work.
    """
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)  # cycles: some 10 ms
    begin.record()
    began = time.perf_counter()
    call()
    host_us = 1e6 * (time.perf_counter() - began)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end), host_us


class _GPT2(nn.Module):
    """The size and the work of GPT-2 124M, its head tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        block = nn.TransformerEncoderLayer(
            WIDTH, 12, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(
            block, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss of predicting each token from those before it."""
        x = self.tokens(tokens) + self.positions.weight
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, x.device, x.dtype)
        logits = self.blocks(x, mask=mask, is_causal=True) @ self.tokens.weight.T
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def take_steps(rounds: int, pipe: Pipe) -> None:
    """Send milliseconds of a step without and with, of each round."""
    torch.manual_seed(0)
    model = _GPT2().to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT), device="cuda")

    def milliseconds(watch: Any, steps: int = 20) -> float:
        began = 0.0
        for step in range(-WARMUP_STEPS, steps):
            if step == 0:
                torch.cuda.synchronize()
                began = time.perf_counter()
            optimizer.zero_grad()
            loss = model(tokens)
            loss.backward()
            if watch is not None:
                watch.collect(loss=loss)
            optimizer.step()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began) / steps

    times: tuple[list[float], list[float]] = ([], [])
    milliseconds(None)
    for _ in range(rounds):
        times[0].append(milliseconds(None))
        with gradwatch.attach(model, optimizer, run=RUN, endpoint=unused_endpoint()) as watch:
            times[1].append(milliseconds(watch))
    pipe.send(times)
