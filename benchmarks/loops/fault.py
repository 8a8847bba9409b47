"""A fault in the backward pass of one module, at one step, on one rank."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import torch
from torch import Tensor, nn

EXPLOSION: Final = 2.0**20
"""About a million; a power of two, so that dividing by it gives back the very same numbers."""


class FaultKind(StrEnum):
    """What happens to the gradient."""

    NONE = "none"
    NAN = "nan"
    EXPLOSION = "explosion"


@dataclass(slots=True)
class Fault:
    """Where the gradient goes wrong. The gradients of all modules behind it in forward order stay.

    Args:
        kind: What happens. A NaN also reaches every module before this one, as it does in life.
            An explosion is divided out again where it leaves the module: its own parameters are
            the only ones that explode, and so the largest.
        step: The step, from 0.
        rank: The rank; None for all of them.
        layers: Names of the module's own parameters, once it is known.
    """

    kind: FaultKind
    step: int
    rank: int | None
    layers: tuple[str, ...] = ()


class Injection:
    """Multiplies the gradient at a module; by 1 but for the step of the fault.

    Tensors hold the factors, so that a compiled model need not be compiled again.
    """

    def __init__(self, kind: FaultKind) -> None:
        self._factors = {
            FaultKind.NONE: (1.0, 1.0),
            FaultKind.NAN: (float("nan"), 1.0),
            FaultKind.EXPLOSION: (EXPLOSION, 1 / EXPLOSION),
        }[kind]
        self.output = self.input = torch.ones(())

    def arm(self, *, on: bool) -> None:
        """Switch it on or off for the forward passes from here on."""
        output, input_ = self._factors if on else (1.0, 1.0)
        # New ones: a graph that is kept holds the old.
        self.output, self.input = torch.tensor(output), torch.tensor(input_)

    def register(self, module: nn.Module) -> None:
        """Register it at a module that takes one tensor and returns one."""
        own = type(module)
        injection = self

        def forward(self: nn.Module, x: Tensor) -> Tensor:
            output: Tensor = own.forward(self, _scaled(x, injection.input))
            return _scaled(output, injection.output)

        # A class and no hooks: of modules with one class the compiler may take the hooks to be
        # the same.
        module.__class__ = type(own.__name__, (own,), {"forward": forward})


def _scaled(value: Tensor, factor: Tensor) -> Tensor:
    return _ScaledGradient.apply(value, factor)  # type: ignore[no-any-return,no-untyped-call]  # torch's


class _ScaledGradient(torch.autograd.Function):
    """The same value; the gradient times a factor."""

    @staticmethod
    def forward(value: Tensor, factor: Tensor) -> Tensor:  # noqa: ARG004 - of the backward pass
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return gradient * factor.to(gradient), None
