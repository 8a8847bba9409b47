"""A parameter on a device that this machine does not have."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import nn


class Elsewhere(torch.Tensor):
    """A tensor that says it is on such a device; nothing can be computed with it.

    Args:
        kind: Such as `xpu`.
    """

    @staticmethod
    def __new__(cls, kind: str) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls, (4,), dtype=torch.float32, device=torch.device(kind, 0), requires_grad=True
        )
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # as torch's documentation has it
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        msg = f"{func} on a device that is not there"
        raise NotImplementedError(msg)


def module_on(kind: str) -> nn.Module:
    """Return a module with one parameter, `weight`, on such a device."""
    module = nn.Module()
    module._parameters["weight"] = Elsewhere(kind)  # type: ignore[assignment]  # as good as one
    return module
