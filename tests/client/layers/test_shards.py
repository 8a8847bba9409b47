"""Part of a gradient that a rank holds, and whether the gradient is whole yet."""

from __future__ import annotations

import pytest
import torch

from gradwatch._layers.shards import find_shard, is_partial, is_replicated
from tests.support.recording import placed

pytestmark = pytest.mark.slow


def test_a_gradient_on_one_rank_is_whole(one_process: None) -> None:
    """A mesh of one rank cuts nothing."""
    from torch.distributed.tensor import Replicate, Shard

    assert find_shard(torch.ones(2)) == ""
    assert find_shard(placed(Shard(0))) == ""
    assert find_shard(placed(Replicate(), Shard(0))) == ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("placement", ["Replicate", "Shard", "Partial"])
def test_on_one_rank_all_of_it_is_there(one_process: None, placement: str) -> None:
    from torch.distributed import tensor

    made = {"Replicate": tensor.Replicate(), "Shard": tensor.Shard(0), "Partial": tensor.Partial()}
    assert is_replicated(placed(made[placement]))


def test_only_a_sum_over_ranks_that_nobody_has_made_is_partial(one_process: None) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    assert not is_partial(placed(Replicate(), Shard(0)))
    assert is_partial(placed(Shard(0), Partial()))
