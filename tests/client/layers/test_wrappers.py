"""Wrappers around the user's modules are noticed, and do not show in names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwatch._layers.wrappers import find_reduction, is_compiled, unwrapped_modules

GROUP_SCRIPT = """
import sys

import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwatch._layers.wrappers import find_reduction


def work(rank, path):
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=2)
    groups = [dist.new_group([each]) for each in range(2)]
    alone = DistributedDataParallel(nn.Linear(1, 1), process_group=groups[rank])
    assert find_reduction([alone], 2) == "unknown"
    assert find_reduction([alone], 2, (0, 1)) == "unknown"
    assert find_reduction([alone], 2, (rank,)) == "mean"
    assert find_reduction([nn.Linear(1, 1)], 2, (rank,)) == "none"
    assert find_reduction([DistributedDataParallel(nn.Linear(1, 1))], 2) == "mean"
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


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


@pytest.mark.slow
def test_the_reduction_is_known_under_ddp_and_alone(one_process: None) -> None:
    plain = nn.Linear(1, 1)
    wrapped = DistributedDataParallel(nn.Linear(1, 1))

    assert find_reduction([plain], 1) == "none"
    assert find_reduction([plain], 2) == "unknown"
    assert find_reduction([plain, nn.Sequential(wrapped)], 2) == "mean"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_a_group_of_the_ranks_averages_need_not_be_equal_on_all(
    run_script: Any, tmp_path: Any
) -> None:
    """DDP over one of two ranks: the other may hold another part of the model."""
    result = run_script(GROUP_SCRIPT, tmp_path / "group")
    assert result.returncode == 0, result.stderr
