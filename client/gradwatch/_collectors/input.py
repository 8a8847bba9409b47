"""Arguments of the collectors: parameters in, gradients out; thresholds; a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from gradwatch._statistics.devices import why_unsupported
from gradwatch._statistics.gradients import dense


class Gradients(NamedTuple):
    """Gradients that have elements, in the order of their parameters.

    Args:
        tensors: Dense, real, of any device; see `dense`.
        num_elements: Elements of all of them, with the zeros that sparse ones do not store.
    """

    tensors: list[Tensor]
    num_elements: int


def gradients_of(params: Iterable[Tensor], name: str = "params") -> Gradients:
    """Take the gradients of parameters; those without one, or without elements, are left out.

    Args:
        params: Parameters, or other tensors with `.grad`; iterated over once.
        name: What the caller calls them, for the error.

    Raises:
        TypeError: If *params* is no iterable of tensors, or a gradient is of a layout that cannot
            be read without a copy of it.
        ValueError: If a gradient is complex, or on a device other than cpu and cuda.
    """
    # A tensor is an iterable of its rows, and rows have no gradient: it would pass as empty.
    if isinstance(params, Tensor) or not isinstance(params, Iterable):
        msg = (
            f"{name}: an iterable of parameters, such as model.parameters(), "
            f"got {type(params).__name__}"
        )
        raise TypeError(msg)
    tensors: list[Tensor] = []
    num_elements = 0
    for place, param in enumerate(params):
        if not isinstance(param, Tensor):
            msg = f"{name}[{place}]: a parameter or another tensor, got {type(param).__name__}"
            raise TypeError(msg)
        gradient = param.grad
        if gradient is None:
            continue
        if gradient.is_complex():
            msg = (
                f"{name}[{place}]: its gradient, shape {tuple(gradient.shape)}, is of "
                f"{gradient.dtype}; only real gradients can be measured"
            )
            raise ValueError(msg)
        if why := why_unsupported(gradient.device):
            msg = f"{name}[{place}]: its gradient is on {gradient.device}; {why}"
            raise ValueError(msg)
        stored = dense(gradient)
        numel = gradient.numel() if gradient.is_sparse else stored.numel()
        if numel:
            tensors.append(stored)
            num_elements += numel
    return Gradients(tensors, num_elements)


def check_thresholds(vanishing_threshold: float, exploding_threshold: float) -> None:
    """Refuse thresholds that no norm can be compared with.

    Raises:
        ValueError: If one is NaN or below 0.
    """
    for name, value in (
        ("vanishing_threshold", vanishing_threshold),
        ("exploding_threshold", exploding_threshold),
    ):
        if not value >= 0:
            msg = f"{name}: an L2 norm, 0 or above, got {value!r}"
            raise ValueError(msg)


def check_device(device: torch.device | str | int) -> torch.device:
    """Return a device that exists, and on which norms can be.

    Raises:
        ValueError: If it does not, or is neither cpu nor cuda.
    """
    try:
        found = torch.empty(0, device=device).device
    except (AssertionError, RuntimeError, TypeError) as error:
        there_are = ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])
        msg = f"device: {str(device)!r} does not exist; there are: {there_are}"
        raise ValueError(msg) from error
    if why := why_unsupported(found):
        msg = f"device: {str(device)!r} cannot be used; {why}"
        raise ValueError(msg)
    return found
