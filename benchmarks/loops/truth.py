"""Numbers that a loop records without gradwatch: norms, loss and learning rate of each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(slots=True)
class Note:
    """Truth about one optimizer's update.

    Args:
        step: Training step, from 0.
        layers: L2 norm of each layer's gradient by the layer's name, in float64: after the last
            backward pass of the step, reduced over the ranks, without loss scale, before clipping.
        lr: Learning rate of the update.
        loss: Loss of this rank.
        taken: Whether the update was done.
    """

    step: int
    layers: dict[str, float]
    lr: float
    loss: float | None = None
    taken: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """Return what `to_json` described."""
        return cls(**plain)


class Truth:
    """The notes of one trial on one rank."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def step(
        self,
        step: int,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Optimizer,
        *,
        loss: Tensor | float | None = None,
        scale: float = 1.0,
        taken: bool = True,
    ) -> Note:
        """Note what is true now: after the last backward pass of a step, before anything clips.

        Args:
            step: Training step, from 0.
            model: The user's own, without wrappers; several by name as `attach` takes them.
            optimizer: Whose update it is; only its parameters count.
            loss: Loss of this rank.
            scale: Loss scale that the gradients still carry.
            taken: Whether the update will be done; may be set later in the note.
        """
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        note = Note(
            step=step,
            layers={
                name: _norm(parameter.grad) / scale
                for name, parameter in named_parameters(model).items()
                if id(parameter) in own and parameter.grad is not None
            },
            lr=float(optimizer.param_groups[0]["lr"]),
            loss=None if loss is None else float(loss),
            taken=taken,
        )
        self.notes.append(note)
        return note


def named_parameters(model: nn.Module | Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    if isinstance(model, nn.Module):
        return dict(model.named_parameters())
    return {
        f"{key}.{name}": parameter
        for key, module in model.items()
        for name, parameter in module.named_parameters()
    }


@torch.no_grad()
def _norm(gradient: Tensor) -> float:
    """Return the norm of the whole gradient; of a sharded one that is a collective."""
    whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    dense = whole.to_dense() if whole.is_sparse else whole
    return float(torch.linalg.vector_norm(dense.double()))
