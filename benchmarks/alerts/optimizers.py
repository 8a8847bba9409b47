"""Optimizers of the trainings, each with its usual learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

Make: TypeAlias = Callable[[Sequence[nn.Parameter], float], list[Optimizer]]

_ADAM_RATE: Final = 2e-3


def _one(kind: Callable[..., Optimizer], usual: float, **settings: Any) -> Make:
    def make(parameters: Sequence[nn.Parameter], factor: float) -> list[Optimizer]:
        return [kind(parameters, lr=usual * factor, **settings)]

    return make


def _muon(parameters: Sequence[nn.Parameter], factor: float) -> list[Optimizer]:
    """Muon for matrices, AdamW for the rest, as it is meant to be used."""
    matrices = [each for each in parameters if each.ndim == 2]
    others = [each for each in parameters if each.ndim != 2]
    made: list[Optimizer] = []
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=0.01 * factor, ns_steps=3))
    if others:
        made.append(torch.optim.AdamW(others, lr=_ADAM_RATE * factor))
    return made


OPTIMIZERS: Final[dict[str, Make]] = {
    "sgd": _one(torch.optim.SGD, 0.1),
    "momentum": _one(torch.optim.SGD, 0.03, momentum=0.9),
    "adam": _one(torch.optim.Adam, _ADAM_RATE),
    "gan_adam": _one(torch.optim.Adam, 1e-3, betas=(0.5, 0.999)),
    "adamw": _one(torch.optim.AdamW, _ADAM_RATE, weight_decay=0.05),
    "adagrad": _one(torch.optim.Adagrad, 0.03),
    "adafactor": _one(torch.optim.Adafactor, 0.01),
    "rmsprop": _one(torch.optim.RMSprop, 5e-4),
    "muon": _muon,
}
"""Name to what makes the optimizers of some parameters with a factor on the usual rate."""
