"""Torch refuses any wait for the device, over the set-ups that could have one.

Each is first trained without gradwatch: a wait of its own would say nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.gpu_session.aims import Aim
from benchmarks.gpu_session.device import Device
from benchmarks.gpu_session.rows import Rows
from benchmarks.gpu_session.training import WIDTH, logged, loss_of, small_model, watching
from tests.support.waits import refusing_waits

REFUSED: Final = "called a synchronizing"
"""Part of the error of a wait that torch refused."""

STEPS: Final = 8


@dataclass
class Setup:
    """A training, ready to be watched.

    Args:
        model: What is watched.
        step: Makes one step; is given what collects.
        optimizers: Given to `attach`.
        settings: Of `attach`.
        unmeasured: Layers whose numbers cannot be there.
    """

    model: nn.Module
    step: Callable[[Callable[..., object]], object]
    optimizers: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    unmeasured: Sequence[str] = ()


def run(device: Device, rows: Rows) -> None:
    """Train each set-up without and with gradwatch, any wait being an error."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # what the deterministic mode asks for
    for name, make in SETUPS.items():
        with rows.attempt(name, Aim.NO_WAIT):
            _check(device, rows, name, make)


def _check(device: Device, rows: Rows, name: str, make: Callable[[Device], Setup]) -> None:
    with _as(name, device):
        alone = make(device)
        alone.step(_nothing)
        try:
            with refusing_waits():
                alone.step(_nothing)
        except RuntimeError as error:
            if REFUSED not in str(error):
                raise
            rows.add(name, note="the training itself waits: nothing can be told")
            return
        setup = make(device)
        with (
            logged() as lines,
            watching(setup.model, setup.optimizers, **setup.settings) as received,
        ):
            setup.step(received.watch.collect)
            with refusing_waits():
                for _ in range(STEPS):
                    setup.step(received.watch.collect)
            device.synchronize()
            stats = received.stats()
            faults = str(received.watch.stats()["last_error"])
        gaps = {layer for each in stats for layer in _gaps(received.layers(each))}
        waits = [line for line in [*lines, faults] if REFUSED in line]
        expected = set(setup.unmeasured)
        is_measured = bool(stats) and gaps <= expected
        note = (
            waits[0] if waits else f"unmeasured: {', '.join(gaps - expected)}" * (gaps > expected)
        )
        told = "; ".join(line for line in lines if "told once" in line)
        note = note or told or f"{len(stats)} records"
        rows.add(name, passed=not waits, aim=Aim.NO_WAIT, note=note[:200])
        if not is_measured:
            # The CPU's paths have tests of their own.
            passed = None if device.is_rehearsal else False
            what = f"{name}: records with all other layers"
            rows.add(what, [len(stats)], passed=passed, aim=Aim.NUMBERS)


def _gaps(layers: dict[str, float]) -> list[str]:
    return [name for name, value in layers.items() if not value >= 0.0]


def _nothing(**_given: object) -> None:
    """Collect nothing."""


@contextlib.contextmanager
def _as(name: str, device: Device) -> Iterator[None]:
    """Switch on what the set-up is about, for the whole process."""
    if name == DETERMINISTIC:
        torch.use_deterministic_algorithms(True)
    elif name == DEFAULT_DEVICE:
        torch.set_default_device(device.name)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_device(None)


def _plain(device: Device, **settings: Any) -> Setup:
    model = small_model(device.name)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.ones(8, WIDTH, device=device.name)

    def step(collect: Callable[..., object]) -> None:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        collect(loss=loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()

    return Setup(model, step, optimizer, settings)


def _scaled(device: Device) -> Setup:
    model = small_model(device.name)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler(device.name)
    batch = torch.ones(8, WIDTH, device=device.name)

    def step(collect: Callable[..., object]) -> None:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        collect(loss=loss)
        scaler.step(optimizer)
        scaler.update()

    return Setup(model, step, optimizer, {"scaler": scaler})


def _two_stages(device: Device) -> Setup:
    """One optimizer's gradients are unscaled already, the other's are not."""
    model = small_model(device.name)
    halves = [torch.optim.AdamW(model[i].parameters(), fused=True) for i in (0, 2)]
    scaler = torch.amp.GradScaler(device.name)
    batch = torch.ones(8, WIDTH, device=device.name)

    def step(collect: Callable[..., object]) -> None:
        model.zero_grad()
        loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(halves[0])
        collect(loss=loss)
        for optimizer in halves:
            scaler.step(optimizer)
        scaler.update()

    return Setup(model, step, halves, {"scaler": scaler})


def _offloaded(device: Device, **settings: Any) -> Setup:
    """A layer on the CPU, which nothing of the training brings together with the others."""
    near, far = small_model(device.name), small_model("cpu")
    model = nn.ModuleDict({"near": near, "far": far})
    batches = torch.ones(8, WIDTH, device=device.name), torch.ones(8, WIDTH)

    def step(collect: Callable[..., object]) -> None:
        model.zero_grad()
        loss_of(near, batches[0]).backward()
        loss_of(far, batches[1]).backward()
        collect()

    return Setup(model, step, None, settings)


def _given(device: Device, odd: Tensor, *unmeasured: str) -> Setup:
    """A gradient of an odd kind beside an ordinary one."""
    model = nn.ParameterDict()
    model["odd"] = nn.Parameter(torch.zeros_like(odd))
    model["even"] = nn.Parameter(torch.zeros(WIDTH, device=device.name))
    own: list[Tensor] = list(model.parameters())

    def step(collect: Callable[..., object]) -> None:
        own[0].grad, own[1].grad = odd, torch.ones(WIDTH, device=device.name)
        collect()

    return Setup(model, step, unmeasured=unmeasured)


def _float8(device: Device) -> Setup:
    return _given(device, torch.ones(16, 16, device=device.name).to(torch.float8_e4m3fn), "odd")


def _wrapper(device: Device) -> Setup:
    two: Any = import_module("torch.testing._internal.two_tensor").TwoTensor
    one = torch.ones(16, 16, device=device.name)
    return _given(device, two(one, one.clone()), "odd")


def _strided(device: Device) -> Setup:
    return _given(device, torch.ones(512, 512, device=device.name)[:, ::2])


DETERMINISTIC, DEFAULT_DEVICE = "deterministic mode", "default device"
SETUPS: Final[dict[str, Callable[[Device], Setup]]] = {
    "clipping": _plain,
    "a scaler": _scaled,
    "two optimizers at two stages": _two_stages,
    "report_every=2": lambda device: _plain(device, report_every=2),
    "local=True": lambda device: _plain(device, local=True),
    "a layer on the CPU": _offloaded,
    "a layer on the CPU, report_every=2": lambda device: _offloaded(device, report_every=2),
    DETERMINISTIC: _plain,
    DEFAULT_DEVICE: _plain,
    "a float8 gradient": _float8,
    "a wrapper subclass": _wrapper,
    "a strided gradient": _strided,
}
