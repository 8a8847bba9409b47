"""Microseconds of `collect()` on the host, and its calls into CUDA by kind and thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

import gradwatch
from benchmarks.gpu_session.aims import HOST_US, Aim
from benchmarks.gpu_session.calls import (
    CONTROL,
    OTHER,
    SENDER,
    TRAINING,
    Control,
    by_thread,
    own_threads,
    profiled,
)
from benchmarks.gpu_session.device import Device
from benchmarks.gpu_session.gradients import Gradients, all_gradients, hand_over, parameters_for
from benchmarks.gpu_session.receiver import listening
from benchmarks.gpu_session.rows import Rows
from benchmarks.gpu_session.training import RUN
from benchmarks.spread import quantile
from gradwatch._statistics.norm_slots import Expected, NormSlots
from gradwatch._statistics.single import measure_norm

ROUNDS: Final = 200
PROFILED: Final = 20
HOOKED: Final = (148, 48)
"""Layers of a model with `local=True`, blocks of one with `blocks=`."""

CASES: Final = ("GPT-2 124M float32",)
"""What is measured beside the small tensors."""

LIMITS_US: Final = {148: HOST_US, 2000: 1000.0}


def run(device: Device, rows: Rows) -> None:
    """Measure models of so many tensors, then norms in hooks."""
    with listening() as endpoint:
        for case in all_gradients(is_small=device.is_rehearsal):
            if case.name in CASES or "small" in case.name:
                with rows.attempt(f"collect(), {len(case.shapes):,} tensors", Aim.HOST):
                    _measure(device, rows, case, endpoint)
        for number in HOOKED:
            with rows.attempt(f"{number} norms in hooks", Aim.HOST):
                _count_norms(device, rows, number)


def _measure(device: Device, rows: Rows, case: Gradients, endpoint: str) -> None:
    # Three sets in turn: no address is that of the call before.
    sets = [case.make(device.name)[1] for _ in range(3)]
    model = parameters_for(sets[0])
    name = f"collect(), {len(case.shapes):,} tensors"
    with gradwatch.attach(model, run=RUN, endpoint=endpoint) as watch:
        costs = device.times(
            [watch.collect],
            device.choose(ROUNDS, 3),
            lambda turn: hand_over(model, sets[turn % len(sets)]),
        )
        host = [cost.host_us for cost in costs]
        most = LIMITS_US.get(len(case.shapes))
        what = f"{name}: host p50"
        aim = Aim.HOST if most == HOST_US else None
        if most is None:
            rows.add(what, [quantile(host, 0.5)], "us")
        else:
            rows.limit(what, [quantile(host, 0.5)], "us", most, aim)
        rows.add(f"{name}: host p99", [quantile(host, 0.99)], "us")
        is_apart = all(cost.is_apart for cost in costs)
        rows.add(f"{name}: behind a sleeping device", note="yes" if is_apart else "NO")
        _count(device, rows, name, watch, model, sets)
        faults = watch.stats()
        rows.add(f"{name}: faults", [float(faults["faults"])], note=str(faults["last_error"])[:120])


def _count(
    device: Device,
    rows: Rows,
    name: str,
    watch: Any,
    model: nn.ParameterList,
    sets: Sequence[list[Tensor]],
) -> None:
    """Write the calls into CUDA of one collection, by thread; the sender's have to be none."""
    control = Control()
    times = device.choose(PROFILED, 2)

    def work() -> None:
        for turn in range(times):
            hand_over(model, sets[turn % len(sets)])
            watch.collect()
        time.sleep(0.2)  # the sender looks for what has arrived
        control.query()

    found = by_thread(profiled(work, device), own_threads())
    _write(rows, name, found[TRAINING], times)
    is_told = bool(found[CONTROL]) or device.is_rehearsal
    why = "" if is_told else "the trace does not show the control thread: nothing can be told"
    number = found[SENDER].total()
    rows.add(
        f"{name}: calls by the sender's thread",
        [number],
        passed=number == 0 if is_told else False,
        aim=Aim.SENDER,
        note=why or _describe(found[SENDER]),
    )
    if found.get(OTHER):
        rows.add(f"{name}: calls by other threads", note=_describe(found[OTHER]))


def _write(rows: Rows, name: str, calls: Counter[str], times: int) -> None:
    for kind, number in sorted(calls.items()):
        count = number / times
        waits = kind in ("waits", "host allocations")
        passed = count == 0 if waits else None
        aim = Aim.NO_WAIT if waits else None
        rows.add(f"{name}: {kind}", [count], "a call", passed=passed, aim=aim)


def _describe(calls: Counter[str]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in calls.most_common(5))


def _count_norms(device: Device, rows: Rows, number: int) -> None:
    """Write what so many hooks ask for: a launch each, and one where their norms are taken."""
    gradients = [torch.ones(64, 64, device=device.name) for _ in range(number)]
    expected = Expected(gradients[0].device, (torch.float32,), 4 * 64 * 64)
    slots = NormSlots([expected] * number)

    def step() -> None:
        for index, gradient in enumerate(gradients):
            slots.keep(index, measure_norm(gradient, slots, index))
        slots.take(range(number))

    rows.add(f"{number} norms in hooks: host", [_host_us(device, step)], "us")
    calls = by_thread(profiled(step, device), own_threads())[TRAINING]
    passed = None if device.is_rehearsal else calls == {"launches": number + 1}
    rows.add(
        f"{number} norms in hooks: calls",
        [calls.total()],
        "a step",
        passed=passed,
        aim=Aim.HOST,
        note=_describe(calls),
    )


def _host_us(device: Device, call: Callable[[], Any]) -> float:
    return quantile([c.host_us for c in device.times([call], device.choose(40, 2))], 0.5)
