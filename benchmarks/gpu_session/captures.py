"""Stage 7: collections just before a capture, and hooks inside it.

A capture in mode "global" fails if any thread makes a call that is not allowed meanwhile. Each part
is first done without gradwatch: what fails then says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.gpu_session.aims import Aim
from benchmarks.gpu_session.device import Device
from benchmarks.gpu_session.rows import Rows
from benchmarks.gpu_session.training import (
    WIDTH,
    Received,
    logged,
    loss_of,
    norms,
    small_model,
    watching,
)

CAPTURES: Final = 50
CAPTURE_S: Final = 0.06
"""Several rounds of the background thread."""

INSIDE: Final = 1_000_000
"""Added to the step's number of what is collected inside a capture: none may arrive."""

TOLERANCE: Final = 1e-4


def run(device: Device, rows: Rows) -> None:
    """Do all parts on one stream, which is also the one that is captured."""
    with device.side_stream():
        for name, settings in (
            ("collect() and capture", {}),
            ("with local=True and blocks=", {"local": True, "blocks": None}),
        ):
            with rows.attempt(name, Aim.CAPTURES):
                _capture(device, rows, name, settings)


def _inputs(device: Device) -> list[Tensor]:
    return [torch.full((8, WIDTH), 0.5 * (n + 1), device=device.name) for n in range(4)]


def _capture(device: Device, rows: Rows, name: str, settings: dict[str, Any]) -> None:
    model, inputs = small_model(device.name), _inputs(device)
    expected = [_eager(model, batch) for batch in inputs]
    count = device.choose(CAPTURES, 2)
    with rows.attempt(f"{name}, without gradwatch"):
        failed = _Captures(device, model, inputs, None).run(3)
        if failed:
            rows.add(name, note=f"fails without gradwatch, too: {failed[0]}")
            return
    if "blocks" in settings:
        settings = settings | {"blocks": [model[0], model[2]]}
    with logged() as told, watching(model, **settings) as received:
        failed = _Captures(device, model, inputs, received.watch.collect).run(count)
        wrong = _wrong(received, expected, count)
    if not device.is_rehearsal and not any("captur" in line for line in told):
        wrong.append("not a word about the capture")
    note = failed[0] if failed else ""
    rows.add(
        f"{name}: captures that failed, of {count}",
        [len(failed)],
        passed=not failed,
        aim=Aim.CAPTURES,
        note=note,
    )
    rows.add(
        f"{name}: numbers not those of the eager step",
        [len(wrong)],
        passed=not wrong,
        aim=Aim.CAPTURES,
        note="; ".join(wrong[:2]),
    )


def _eager(model: nn.Module, batch: Tensor) -> dict[str, float]:
    model.zero_grad()
    loss_of(model, batch).backward()
    return norms(model)


class _Captures:
    """An eager step, and at once a capture of the same step on another batch."""

    def __init__(
        self,
        device: Device,
        model: nn.Module,
        inputs: Sequence[Tensor],
        collect: Callable[..., object] | None,
    ) -> None:
        self._device = device
        self._model = model
        self._inputs = inputs
        self._collect = collect or (lambda **_: None)

    def run(self, count: int) -> list[str]:
        """Return why captures failed."""
        failed = []
        for number in range(count):
            try:
                self._one(number)
            except RuntimeError as error:
                failed.append(str(error).partition("\n")[0][:160])
                self._device.synchronize()
        return failed

    def _one(self, number: int) -> None:
        static = self._inputs[number % len(self._inputs)].clone()
        self._step(static)
        self._collect(step=number)

        def body() -> None:
            self._step(static)
            if not self._device.is_rehearsal:
                self._collect(step=INSIDE + number)
            time.sleep(self._device.choose(CAPTURE_S, 0.0))

        replay = self._device.capture(body)
        replay()
        self._device.synchronize()  # the graph's memory must not go before

    def _step(self, batch: Tensor) -> None:
        self._model.zero_grad(set_to_none=True)
        loss_of(self._model, batch).backward()


def _wrong(received: Received, expected: Sequence[dict[str, float]], count: int) -> list[str]:
    """Return what is not as it has to be in the records."""
    stats = received.stats()
    wrong = [] if len(stats) == count else [f"{len(stats)} records in place of {count}"]
    for record in stats:
        if record.step >= INSIDE:
            wrong.append(f"a record of step {record.step}, inside the capture")
            continue
        own = expected[record.step % len(expected)]
        for layer, value in received.layers(record).items():
            if not abs(value - own[layer]) <= TOLERANCE * own[layer]:
                wrong.append(f"step {record.step}: {layer} is {value}, not {own[layer]}")
    return wrong
