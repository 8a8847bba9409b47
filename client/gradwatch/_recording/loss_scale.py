"""The loss scale of a GradScaler: what it is, and which gradients still carry it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer


class LossScale:
    """Reads the scaler's state; neither waits for the device nor changes anything.

    Args:
        scaler: The user's, None without one: then nothing is scaled.
        optimizers: Those that are watched.
        members: For each of them the indices of the layers that it trains.
    """

    def __init__(
        self,
        scaler: GradScaler | None,
        optimizers: Sequence[Optimizer],
        members: Sequence[frozenset[int]],
    ) -> None:
        self._scaler = scaler
        self._optimizers = optimizers
        self._members = members

    @property
    def value(self) -> Tensor | None:
        """The scale, 0-d on its device; None before there is one."""
        return None if self._scaler is None else self._scaler._scale

    def divisor(self, optimizer: int | None, layers: Sequence[int]) -> Tensor | None:
        """Return the scale that these layers' gradients still carry: 0-d, (layers,), or None.

        Args:
            optimizer: Number of the one that trains them; None: of any.
            layers: Their indices.
        """
        scale, optimizers = self.value, self._optimizers
        if scale is None:
            return None
        if optimizer is not None or len(optimizers) < 2:
            one = optimizers[optimizer or 0] if optimizers else None
            return scale if self._is_scaled(one) else None
        scaled = [self._is_scaled(each) for each in optimizers]
        if all(scaled) or not any(scaled):
            return scale if scaled[0] else None
        free = frozenset[int]().union(
            *(own for own, still in zip(self._members, scaled, strict=True) if not still)
        )
        mask = torch.tensor([layer in free for layer in layers])
        return torch.where(mask.to(scale.device), 1.0, scale)

    def was_skipped(self, optimizer: int) -> bool:
        """Tell whether the scaler has just handled an optimizer's step.

        Of an optimizer whose hooks saw no step that means that it was skipped.
        """
        state = self._state(optimizer)
        return state is not None and state["stage"].name == "STEPPED"

    def found_inf(self, optimizer: int) -> list[Tensor]:
        """Return what tells whether a step of a fused optimizer skips itself, 0-d per device.

        It is known only within the optimizer's step; such an optimizer is called in any case.
        """
        found = getattr(self._optimizers[optimizer], "found_inf", None)
        return [found] if isinstance(found, Tensor) else []

    def _state(self, optimizer: int) -> dict[str, Any] | None:
        """Return the scaler's state of an optimizer without making one."""
        if self._scaler is None:
            return None
        state: dict[str, Any] | None = self._scaler._per_optimizer_states.get(
            id(self._optimizers[optimizer])
        )
        return state

    def _is_scaled(self, optimizer: Optimizer | None) -> bool:
        """Tell whether the gradients of *optimizer*, None for any, still carry the scale."""
        if self._scaler is None:
            return False
        states = self._scaler._per_optimizer_states
        if optimizer is not None:
            states = {key: state for key, state in states.items() if key == id(optimizer)}
        return all(state["stage"].name == "READY" for state in states.values())
