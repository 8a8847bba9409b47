"""With the device far behind, every record has the numbers of its own step."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import nn

from benchmarks.gpu_session.aims import Aim
from benchmarks.gpu_session.device import Device
from benchmarks.gpu_session.rows import Rows
from benchmarks.gpu_session.training import Received, watching

STEPS: Final = 300
SLEEP_MS: Final = 3.0
"""Each step keeps the device so long, and the host a fraction of it: it falls behind by steps."""

SIZES: Final = (1000, 4096, 65536, 7)


def run(device: Device, rows: Rows) -> None:
    """Train on the main stream and on another one."""
    for name, is_aside in (("main stream", False), ("backward on a side stream", True)):
        for settings in ({}, {"local": True}):
            what = f"{name}{', local=True' if settings else ''}"
            with rows.attempt(what, Aim.ARRIVAL):
                _check(device, rows, what, settings, is_aside=is_aside)


def _check(
    device: Device, rows: Rows, name: str, settings: dict[str, Any], *, is_aside: bool
) -> None:
    model = nn.ParameterList(nn.Parameter(torch.zeros(s, device=device.name)) for s in SIZES)
    count = device.choose(STEPS, 5)
    marks = []
    with watching(model, **settings) as received:
        for number in range(count):
            _step(device, model, received, number, is_aside=is_aside)
            marks.append(torch.cuda.Event())
            marks[-1].record()
            if number == count - 1:
                behind = sum(not mark.query() for mark in marks)
        device.synchronize()
        stats = received.stats()
        dropped = int(received.watch.stats()["dropped"])
    rows.add(f"{name}: steps that the device was behind", [behind])
    wrong = [text for record in stats for text in _wrong(received, record)]
    lost = count - len(stats) - dropped
    rows.add(
        f"{name}: numbers that are not of their step",
        [len(wrong)],
        passed=not wrong,
        aim=Aim.ARRIVAL,
        note="; ".join(wrong[:2]),
    )
    rows.add(
        f"{name}: records, of {count}",
        [len(stats)],
        passed=lost == 0,
        aim=Aim.ARRIVAL,
        note=f"{dropped} counted as dropped, {lost} not accounted for",
    )


def _step(
    device: Device, model: nn.ParameterList, received: Received, number: int, *, is_aside: bool
) -> None:
    """Fill the gradients with the step's number; take them away and spoil their memory at once."""
    with device.side_stream() if is_aside else nullcontext():
        device.sleep(SLEEP_MS)
        torch.stack([each.sum() for each in model]).sum().mul(number + 1.0).backward()
        received.watch.collect(step=number)
        for parameter in model:
            parameter.grad = None
        spoilt = [torch.full_like(each, math.nan) for each in model for _ in range(3)]
        del spoilt


def _wrong(received: Received, record: Any) -> list[str]:
    found = []
    columns = ["l2", *["local_l2"] * ("local_l2" in record.columns)]
    for column in columns:
        values = received.layers(record, column).values()
        for size, value in zip(SIZES, values, strict=True):
            expected = (record.step + 1.0) * math.sqrt(size)
            if not abs(value - expected) <= 1e-5 * expected:
                found.append(f"step {record.step}, {size}: {column} is {value}, not {expected}")
    return found
