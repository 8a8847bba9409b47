"""Which GradScaler is in use: as given, beside the optimizer in its wrapper, the only one alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gradwatch._recording.loss_scale import is_scaler


def find_scaler(given: object, optimizers: Sequence[Optimizer]) -> tuple[GradScaler | None, bool]:
    """Return the scaler, None if there is none, and whether that is certain.

    What is not certain is settled when an optimizer steps for the first time.

    Args:
        given: The argument of `attach`.
        optimizers: As given to `attach`, in their wrappers.

    Raises:
        TypeError: If it is no scaler.
    """
    if given is not None:
        return checked_scaler(given), True
    if not optimizers:
        return None, True
    wrapped = next((each for each in _scalers_of(optimizers) if is_scaler(each)), None)
    if wrapped is not None:
        return wrapped, True
    alive = [each for each in gc.get_objects() if is_scaler(each)]
    return (alive[0] if len(alive) == 1 else None), False


def checked_scaler(scaler: object) -> GradScaler | None:
    """Return the scaler, None for one that is switched off.

    Raises:
        TypeError: If it is no scaler.
    """
    if not isinstance(scaler, GradScaler):
        msg = f"scaler: a torch.amp.GradScaler, got {type(scaler).__name__}"
        raise TypeError(msg)
    return scaler if scaler.is_enabled() else None


def _scalers_of(optimizers: Sequence[Optimizer]) -> Iterator[object]:
    """Yield the scalers that wrappers keep beside their optimizer, as Accelerate's do."""
    for optimizer in optimizers:
        inner: object = optimizer
        while isinstance(inner, Optimizer):
            yield getattr(inner, "scaler", None)
            inner = getattr(inner, "optimizer", None)
