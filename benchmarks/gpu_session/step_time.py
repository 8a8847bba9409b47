"""A step of GPT-2 124M, eager and compiled, with and without gradwatch, in turn."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

import gradwatch
from benchmarks.gpu_session.aims import STEP_PERCENT, Aim
from benchmarks.gpu_session.device import Device
from benchmarks.gpu_session.gpt2 import Training
from benchmarks.gpu_session.receiver import listening
from benchmarks.gpu_session.rows import Rows
from benchmarks.gpu_session.training import RUN

ROUNDS: Final = 5
STEPS: Final = 10
WARMUP_STEPS: Final = 3

NONE, HOOKS, COLLECT = "no gradwatch", "attach only", "attach and collect()"
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    HOOKS: {},
    COLLECT: {},
    "every=10": {"every": 10},
    "report_every=10": {"report_every": 10},
    "local=True": {"local": True},
    "blocks=": {"blocks": None},  # those of the model
}
FEW: Final = (HOOKS, COLLECT)


def run(device: Device, rows: Rows) -> None:
    """Measure each way of training, the most telling first."""
    with listening() as endpoint:
        for name, mode, has_scaler, variants in (
            ("eager bfloat16", "", False, tuple(VARIANTS)),
            ("float16 with a scaler", "", True, (HOOKS,)),
            ("compiled", "default", False, FEW),
            ("reduce-overhead", "reduce-overhead", False, FEW),
        ):
            with rows.attempt(name, Aim.NUMBERS if mode == "reduce-overhead" else None):
                training = Training(device, mode, has_scaler=has_scaler)
                _Block(device, training, endpoint).compare(rows, name, variants)
            gc.collect()
            torch.cuda.empty_cache()
            if not device.is_rehearsal:  # importing the compiler alone takes seconds
                torch.compiler.reset()


class _Block:
    """Blocks of steps of one training."""

    def __init__(self, device: Device, training: Training, endpoint: str) -> None:
        self._device = device
        self._training = training
        self._endpoint = endpoint
        self.faults: dict[str, str] = {}

    def compare(self, rows: Rows, name: str, variants: Sequence[str]) -> None:
        """Write milliseconds of a step, and by how much each variant takes longer."""
        spent: dict[str, list[float]] = {variant: [] for variant in (NONE, *variants)}
        self._run(NONE)  # compiles what there is to compile
        for turn in range(self._device.choose(ROUNDS, 1)):
            order = list(spent)[:: -1 if turn % 2 else 1]
            for variant in order:
                spent[variant].append(self._run(variant))
        rows.add(f"{name}: {NONE}", spent[NONE], "ms")
        for variant in variants:
            pairs = zip(spent[variant], spent[NONE], strict=True)
            percents = [100 * (own / base - 1) for own, base in pairs]
            what = f"{name}: {variant}"
            if (name, variant) == ("eager bfloat16", COLLECT):
                rows.limit(what, percents, "% longer", STEP_PERCENT, Aim.STEP)
            else:
                rows.add(what, percents, "% longer", note=self.faults.get(variant, ""))

    def _run(self, variant: str) -> float:
        training, settings = self._training, dict(VARIANTS.get(variant, {}))
        if variant == NONE:
            return self._time(None)
        if "blocks" in settings:
            settings["blocks"] = training.model.blocks
        with gradwatch.attach(
            training.model,
            training.optimizer,
            run=RUN,
            endpoint=self._endpoint,
            scaler=training.scaler,
            **settings,
        ) as watch:
            spent = self._time(_given(watch) if variant == COLLECT else None)
            if watch.stats()["faults"]:
                self.faults[variant] = str(watch.stats()["last_error"])[:120]
            return spent

    def _time(self, collect: Callable[[Tensor], object] | None) -> float:
        steps = self._device.choose(STEPS, 1)
        began = 0.0
        for step in range(-self._device.choose(WARMUP_STEPS, 1), steps):
            if step == 0:
                self._device.synchronize()
                began = time.perf_counter()
            self._training.step(collect)
        self._device.synchronize()
        return 1e3 * (time.perf_counter() - began) / steps


def _given(watch: Any) -> Callable[[Tensor], object]:
    return lambda loss: watch.collect(loss=loss)
