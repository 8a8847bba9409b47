"""Shard of a plain parameter that this rank holds, as far as marks and groups tell."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from gradwatch._layers.layers import Layer, find_layers
from gradwatch._layers.manifests import Manifests
from gradwatch._layers.parallel import Parallel, find_meshes, has_marks, mark_of
from gradwatch_wire.names import Dimension
from tests.support.recording import Sink

WEIGHT = torch.ones(4, 2)


def marked(**marks: Any) -> nn.Parameter:
    parameter = nn.Parameter(WEIGHT.clone())
    for name, value in marks.items():
        setattr(parameter, name, value)
    return parameter


def at_rank(rank: int, *, is_marked: bool = True, **meshes: tuple[int, ...]) -> Parallel:
    own = {Dimension(name): ranks for name, ranks in meshes.items()}
    return Parallel(rank, 8, own, is_marked)


@pytest.mark.parametrize(
    ("marks", "shard", "mark"),
    [
        ({}, "", ""),
        ({"tensor_model_parallel": False, "shared": False, "allreduce": True}, "", ""),
        ({"tensor_model_parallel": True}, "tensor 1/2", "tensor"),
        ({"model_parallel": True}, "tensor 1/2", "tensor"),
        ({"allreduce": False}, "expert 2/4", "expert"),
        ({"allreduce": False, "tensor_model_parallel": True}, "expert tensor 5/8", "expert"),
        ({"shared": True}, "", "shared"),
        ({"ds_pipe_replicated": True, "model_parallel": True}, "tensor 1/2", "shared"),
    ],
)
def test_marks_of_megatron_and_deepspeed(marks: dict[str, Any], shard: str, mark: str) -> None:
    """Rank 5 is the second of its tensor group, and the third of its expert group."""
    parallel = at_rank(5, tensor=(4, 5), expert=(1, 3, 5, 7))
    parameter = marked(**marks)

    assert (parallel.shard_of(parameter, WEIGHT), mark_of(parameter)) == (shard, mark)
    assert parallel.why_unknown(parameter) == ""


def test_experts_may_have_a_tensor_group_of_their_own() -> None:
    parallel = at_rank(5, tensor=(4, 5), expert=(1, 5), expert_tensor=(5,))
    both = marked(allreduce=False, tensor_model_parallel=True)
    assert parallel.shard_of(both, WEIGHT) == "expert expert_tensor 1/2"


@pytest.mark.parametrize(
    ("marks", "meshes", "is_marked", "why"),
    [
        ({"tensor_model_parallel": True}, {}, True, "no tensor group is known"),
        ({"allreduce": False}, {"tensor": (4, 5)}, True, "no expert group is known"),
        ({"sequence_parallel": True}, {"tensor": (4, 5)}, True, "sum its gradient later"),
        ({}, {"tensor": (4, 5)}, False, "no parameter says by `tensor_model_parallel`"),
    ],
)
def test_what_no_mark_or_group_tells_is_unknown(
    marks: dict[str, Any], meshes: dict[str, Any], is_marked: bool, why: str
) -> None:
    parallel, parameter = at_rank(5, is_marked=is_marked, **meshes), marked(**marks)
    layers = [Layer("a", parameter), Layer("b", parameter)]

    assert why in parallel.why_unknown(parameter)
    assert parallel.shard_of(parameter, WEIGHT) == "unknown 5/8"
    told = parallel.unknown_warning(layers)
    assert told.startswith(
        "parallel: the norms of a and 1 other layers and the total are not known"
    )
    assert why in told
    assert Parallel(0, 1).shard_of(parameter, WEIGHT) == ""


@pytest.mark.parametrize(
    ("meshes", "is_divided"),
    [({}, False), ({"data": (4, 5)}, False), ({"tensor": (5,)}, False), ({"tensor": (4, 5)}, True)],
)
def test_a_data_group_alone_divides_nothing(meshes: dict[str, Any], is_divided: bool) -> None:
    """Then DDP or FSDP2 reduces all, and `collect()` needs no second measurement."""
    assert at_rank(5, **meshes).is_divided is is_divided


def test_one_parameter_with_a_mark_tells_of_all() -> None:
    """Megatron marks what is divided; whatever else there is each rank has."""
    assert not has_marks([Layer("a", marked())])
    assert has_marks([Layer("a", marked()), Layer("b", marked(tensor_model_parallel=False))])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([4, 5], TypeError, "parallel: a dict of dimension to process group, got list"),
        ({"rows": [4, 5]}, ValueError, "parallel: dimensions are pipeline, tensor, .*, got 'rows'"),
        ({"data": 5}, TypeError, "parallel: data: a process group, or a list of global ranks"),
        ({"data": []}, TypeError, "parallel: data: a process group, or a list of global ranks"),
        (
            {"data": [4, 6]},
            ValueError,
            "parallel: data: ranks below 8, each once, 5 among them, got .4, 6.",
        ),
        (
            {"data": [5, 5]},
            ValueError,
            "parallel: data: ranks below 8, each once, 5 among them, got .5, 5.",
        ),
        (
            {"data": [*range(999)]},
            ValueError,
            "parallel: data: ranks below 8, each once, 5 among them, got .{60}$",
        ),
        (
            {"data": [5, 8]},
            ValueError,
            "parallel: data: ranks below 8, each once, 5 among them, got .5, 8.",
        ),
    ],
)
def test_wrong_groups_are_refused(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match="^" + message):
        find_meshes(given, 5, 8)


def test_groups_and_meshes_are_found_by_what_they_are_called(one_process: None) -> None:
    """Those of Megatron; others are no dimension."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.new_group([0], group_desc="PIPELINE_MODEL_PARALLEL_GROUP")
    dist.new_group([0], group_desc="whatever")
    dist.new_group([0], group_desc="mesh_dp")
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))

    assert find_meshes(None, 0, 1) == {}  # nothing is parallel
    assert find_meshes(None, 0, 2) == {"pipeline": (0,), "data": (0,)}
    assert find_meshes({"expert": mesh["dp"], "data": dist.group.WORLD}, 0, 1) == {
        "expert": (0,),
        "data": (0,),
    }
    with pytest.raises(TypeError, match="parallel: data: a process group"):
        find_meshes({"data": mesh}, 0, 1)


class Numbered(nn.Module):
    def __init__(self, number: object) -> None:
        super().__init__()
        self.layer_number = number
        self.inner = nn.Linear(1, 1, bias=False)


def test_blocks_of_a_stage_are_named_by_their_number_in_the_whole_model() -> None:
    """Also as modules; a number that is none, and a name that is no number, stay."""
    model = nn.ModuleDict({"list": nn.ModuleList([Numbered(5), Numbered("6")]), "x": Numbered(7)})
    names = ["list.0.inner.weight", "list.1.inner.weight", "x.inner.weight"]

    assert [layer.name for layer in find_layers(model, None, None)] == names
    staged = [layer.name for layer in find_layers(model, None, None, is_stage=True)]
    assert staged == ["list.4.inner.weight", *names[1:]]


def test_a_manifest_has_shards_sizes_marks_and_groups() -> None:
    layers = [Layer("whole", marked()), Layer("cut", marked(tensor_model_parallel=True))]
    parallel = at_rank(5, tensor=(4, 5), data=tuple(range(5, 8)))
    manifests = Manifests(layers, {}, parallel=parallel)
    _, (made,) = manifests.find((0, 1), [WEIGHT, WEIGHT], ordered=True)

    assert made.shards == ("", "tensor 1/2")
    assert made.numel.unpack() == [8, 16]
    assert made.marks == ("", "tensor")
    assert {name: ranks.unpack() for name, ranks in made.meshes.items()} == {
        "tensor": [4, 5],
        "data": [5, 6, 7],
    }
    assert at_rank(5, data=tuple(range(5, 3_000))).columns() == {}


def test_gradients_that_megatron_keeps_in_main_grad_are_measured(aggregator: Sink) -> None:
    """Its hook adds each gradient to `main_grad`, in float32, and empties `grad`."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    plain = copy.deepcopy(model)
    for parameter in model.parameters():
        own: Any = parameter
        own.main_grad = torch.zeros_like(own)

        def move(moved: Any) -> None:
            moved.main_grad += moved.grad
            moved.grad = None

        own.register_post_accumulate_grad_hook(move)
    watch = aggregator.attach(model)
    for each in (model, plain):
        each(torch.ones(2, 3)).sum().backward()
    found = aggregator.layers(aggregator.collected(watch))

    norms = {
        name: float(own.grad.norm())
        for name, own in plain.named_parameters()
        if own.grad is not None
    }
    assert found == pytest.approx(norms)


def test_what_a_step_left_as_it_was_is_a_part_of_the_whole_layer(
    aggregator: Sink, rank_0_of_2: None
) -> None:
    """At a rate of zero no element moves: of half a layer that is half of it."""
    model = nn.Linear(3, 4)
    cut: Any = model.weight
    cut.tensor_model_parallel = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    aggregator.attach(
        model, optimizer, run="half", parallel={"tensor": [0, 1]}, updates_every=1, overhead=None
    )
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    (stats,) = aggregator.stats(1)

    assert aggregator.layers(stats, "unchanged") == {"weight": 0.5, "bias": 1.0}
    assert aggregator.layers(stats, "weight_rms") == pytest.approx(
        {
            "weight": float(cut.detach().norm()) / 24**0.5,
            "bias": float(model.bias.detach().norm()) / 2.0,
        }
    )
