"""Milliseconds on the device, caches cold, beside one read and torch's own norms.

Two sets of buffers take turns, so that addresses change from call to call as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.gpu_session.aims import DEVICE_BFLOAT16, DEVICE_FLOAT32, Aim
from benchmarks.gpu_session.calls import profiled
from benchmarks.gpu_session.device import Cost, Device
from benchmarks.gpu_session.gradients import Gradients, all_gradients, hand_over, parameters_for
from benchmarks.gpu_session.rows import Rows
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import L2, MEASURED_COLUMNS

ROUNDS: Final = 30
PEERS_BELOW: Final = 4 << 30
"""Bytes from which clipping, which writes, is left out."""

AIMS: Final = {
    "GPT-2 124M float32": (Aim.DEVICE_FLOAT32, DEVICE_FLOAT32),
    "GPT-2 124M bfloat16": (Aim.DEVICE_BFLOAT16, DEVICE_BFLOAT16),
}


def run(device: Device, rows: Rows) -> None:
    """Measure each case."""
    own = torch.cuda.get_device_properties(0)
    runtime = torch.version.hip or torch.version.cuda
    rows.add("device", note=f"{own.name}, torch {torch.__version__}, CUDA {runtime}")
    for case in all_gradients(is_small=device.is_rehearsal):
        with rows.attempt(case.name):
            _measure(device, rows, case)
        torch.cuda.empty_cache()


def _measure(device: Device, rows: Rows, case: Gradients) -> None:
    needed = 5 * case.num_bytes // 2 + (1 << 30)
    if device.free_bytes() < needed:
        rows.skip(case.name, f"{needed / 1e9:.0f} GB of free memory")
        return
    sets = [case.make(device.name) for _ in range(2)]
    read = _costs(device, [memory.view(case.dtype).sum for memory, _ in sets])
    floor = _device_ms(read)
    speeds = [case.num_bytes / cost.device_ms / 1e6 for cost in read]
    rows.add(f"{case.name}: one read, sum()", speeds, "GB/s")
    gradients = [each for _, each in sets]
    for columns in (MEASURED_COLUMNS, (L2,)):
        name = f"{case.name}: {'all six' if len(columns) > 1 else 'l2'}"
        costs = _costs(device, [_measuring(each, columns) for each in gradients])
        _add(rows, name, costs, floor, case if len(columns) > 1 else None)
    events = profiled(_measuring(gradients[0], MEASURED_COLUMNS), device)
    kernels = [event for event in events if event.kind == "kernel"]
    for kernel in sorted({event.name for event in kernels}):
        spent = sum(event.us for event in kernels if event.name == kernel) / 1e3
        rows.add(f"  its kernel {kernel[:38]}", [spent], "ms")
    for name, calls in _peers(case, gradients):
        with rows.attempt(f"{case.name}: {name}"):
            _add(rows, f"{case.name}: {name}", _costs(device, calls), floor, None)


def _costs(device: Device, calls: Sequence[Callable[[], Any]]) -> list[Cost]:
    return device.times(calls, device.choose(ROUNDS, 2))


def _measuring(gradients: Sequence[Tensor], columns: Sequence[str]) -> Callable[[], Any]:
    return partial(statistics, gradients, columns)


def _device_ms(costs: Sequence[Cost]) -> float:
    return median(cost.device_ms for cost in costs)


def _add(
    rows: Rows, name: str, costs: Sequence[Cost], floor: float, judged: Gradients | None
) -> None:
    apart = "" if all(cost.is_apart for cost in costs) else "the host's time is in it"
    rows.add(name, [cost.device_ms for cost in costs], "ms", note=apart)
    ratios = [cost.device_ms / floor for cost in costs]
    if judged is not None and judged.name in AIMS:
        aim, most = AIMS[judged.name]
        rows.limit(f"{name}, x one read", ratios, "x", most, aim)
    else:
        rows.add(f"{name}, x one read", ratios, "x")


def _peers(
    case: Gradients, sets: Sequence[list[Tensor]]
) -> Iterator[tuple[str, list[Callable[[], Any]]]]:
    """Yield torch's own ways to norms of them."""
    if len({each.dtype for each in sets[0]}) == 1:
        yield "_foreach_norm(2)", [partial(torch._foreach_norm, own, 2) for own in sets]
    if case.num_bytes > PEERS_BELOW:
        return
    models = [parameters_for(own) for own in sets]
    for model, own in zip(models, sets, strict=True):
        hand_over(model, own)
    # Its limit is out of reach, and it still multiplies each gradient, by 1.
    yield "clip_grad_norm_", [partial(_clip, model) for model in models]


def _clip(model: nn.Module) -> Tensor:
    return nn.utils.clip_grad_norm_(model.parameters(), 1e30, foreach=True)
