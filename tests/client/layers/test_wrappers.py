"""What is put around the user's modules is noticed, and does not show in names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwatch._layers.wrappers import find_reduction, is_compiled, unwrapped_modules


def compiled(module: nn.Module) -> Any:
    """A module as `torch.compile` wraps it, without the machine code."""
    return torch.compile(module, backend="eager")


def test_compilation_is_noticed_wherever_it_is() -> None:
    """`torch.compile(model)`, `model.compile()`, and either on a part of the model."""
    plain = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    wrapped_part = nn.Sequential(compiled(nn.Linear(1, 1)))
    in_place, in_place_part = nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1))
    in_place.compile(backend="eager")
    in_place_part[0].compile(backend="eager")

    assert not is_compiled([plain])
    assert is_compiled([plain, compiled(plain)])
    assert is_compiled([wrapped_part])
    assert is_compiled([in_place])
    assert is_compiled([in_place_part])


def test_modules_have_the_names_of_the_users_own_model() -> None:
    """A wrapper and what it wraps have one name, whatever is above and below."""
    block = nn.Sequential(compiled(nn.Linear(1, 1)), nn.ReLU())
    found = [(name, type(module).__name__) for name, module in unwrapped_modules(block, "top")]

    assert found == [
        ("top", "Sequential"),
        ("top.0", "OptimizedModule"),
        ("top.0", "Linear"),
        ("top.1", "ReLU"),
    ]


def test_the_reduction_is_known_under_ddp_and_alone(one_process: None) -> None:
    """Of several ranks without a wrapper nobody knows who reduces their gradients."""
    plain = nn.Linear(1, 1)
    wrapped = DistributedDataParallel(nn.Linear(1, 1))

    assert find_reduction([plain], 1) == "none"
    assert find_reduction([plain], 2) == "unknown"
    assert find_reduction([plain, nn.Sequential(wrapped)], 2) == "mean"
