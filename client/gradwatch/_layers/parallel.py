"""Parallel dimensions of a job, and the shard of a plain parameter that a rank holds.

A DTensor knows its shard. Megatron and DeepSpeed divide plain parameters: marks on a parameter say
how it lies on the ranks, and process groups say on which. Megatron sets `tensor_model_parallel`,
`allreduce` (False of an expert), `shared` (a tied copy in another stage) and `sequence_parallel`;
DeepSpeed sets `model_parallel`, `allreduce` and `ds_pipe_replicated`. None of these libraries is
imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch.distributed as dist

from gradwatch._layers.layers import Layer
from gradwatch._layers.shards import find_shard
from gradwatch._statistics.gradients import is_distributed
from gradwatch_wire import Column
from gradwatch_wire.names import Dimension, Mark
from gradwatch_wire.shards import UNKNOWN_PLACEMENT, Shard

_DESCRIPTIONS: Final = {
    "TENSOR_MODEL_PARALLEL_GROUP": Dimension.TENSOR,
    "PIPELINE_MODEL_PARALLEL_GROUP": Dimension.PIPELINE,
    "EXPERT_MODEL_PARALLEL_GROUP": Dimension.EXPERT,
    "EXPERT_TENSOR_PARALLEL_GROUP": Dimension.EXPERT_TENSOR,
    "CONTEXT_PARALLEL_GROUP": Dimension.CONTEXT,
    "DATA_PARALLEL_GROUP": Dimension.DATA,
    "mesh_tp": Dimension.TENSOR,
    "mesh_pp": Dimension.PIPELINE,
    "mesh_ep": Dimension.EXPERT,
    "mesh_cp": Dimension.CONTEXT,
    "mesh_dp": Dimension.DATA,
}
"""Descriptions of process groups: those of Megatron, and of meshes named as in torch's examples."""

_TENSOR_MARKS: Final = ("tensor_model_parallel", "model_parallel")
_SHARED_MARKS: Final = ("shared", "ds_pipe_replicated")

MAX_DECLARED: Final = 2_048
"""Ranks of a group that a manifest declares: 8 kB of the 64 that it has beside the layers."""

NO_MARKS: Final = (
    "no parameter says by `tensor_model_parallel` whether it is divided over the tensor group"
)
NO_GROUP: Final = "it is marked as divided, and no {dimension} group is known"
NOT_SUMMED: Final = "`sequence_parallel`: the ranks of the tensor group sum its gradient later"

SCALED_LATER: Final = (
    "parallel: schedules of torch.distributed.pipelining divide gradients by the number of "
    "micro-batches after the last backward pass; call collect() after schedule.step()"
)


@dataclass(frozen=True, slots=True)
class Parallel:
    """Groups of one rank by parallel dimension.

    Args:
        rank: Global rank.
        world: Ranks of the job.
        meshes: Dimension to the global ranks of the group of this rank, in their order.
        is_marked: Whether parameters say how they lie on the ranks of the tensor group.
    """

    rank: int = 0
    world: int = 1
    meshes: Mapping[Dimension, tuple[int, ...]] = field(default_factory=dict)
    is_marked: bool = True

    def columns(self) -> dict[str, Column]:
        """Return the groups for a manifest, without those that would take much of its room."""
        return {
            dimension.value: Column.pack("<u4", ranks)
            for dimension, ranks in self.meshes.items()
            if len(ranks) <= MAX_DECLARED
        }

    def shard_of(self, parameter: Any, gradient: Any) -> str:
        """Return the shard of a gradient that this rank holds, as a manifest declares it."""
        if is_distributed(gradient) or self.world == 1:
            return find_shard(gradient)
        if self.why_unknown(parameter):
            return str(Shard(self.rank, self.world, UNKNOWN_PLACEMENT))
        number, count = 0, 1
        dimensions = list(_divided_over(parameter, self.meshes))
        for dimension in dimensions:
            ranks = self.meshes[dimension]
            number, count = number * len(ranks) + ranks.index(self.rank), count * len(ranks)
        return str(Shard(number, count, " ".join(dimensions))) if count > 1 else ""

    def count_of(self, parameter: Any) -> int:
        """Return the number of equal shards that a plain parameter is divided into."""
        count = 1
        if self.world > 1 and not is_distributed(parameter) and not self.why_unknown(parameter):
            for dimension in _divided_over(parameter, self.meshes):
                count *= len(self.meshes[dimension])
        return count

    def why_unknown(self, parameter: Any) -> str:
        """Return why it is not known how a plain parameter lies on the ranks, empty if it is."""
        if self.world == 1 or is_distributed(parameter):
            return ""
        for dimension in _divided_over(parameter, self.meshes):
            if dimension not in self.meshes:
                return NO_GROUP.format(dimension=dimension)
        if len(self.meshes.get(Dimension.TENSOR, ())) < 2 or _is_tensor(parameter):
            return ""
        if getattr(parameter, "sequence_parallel", False):
            return NOT_SUMMED
        return "" if self.is_marked else NO_MARKS

    @property
    def is_divided(self) -> bool:
        """Presence of a group of several ranks that do not hold the same."""
        return any(len(ranks) > 1 for own, ranks in self.meshes.items() if own != Dimension.DATA)

    def collect_advice(self) -> str:
        """Return where to call `collect` so that gradients are complete; empty for anywhere."""
        is_stage = len(self.meshes.get(Dimension.PIPELINE, ())) > 1
        return SCALED_LATER if is_stage and "torch.distributed.pipelining" in sys.modules else ""

    def unknown_warning(self, layers: Iterable[Layer]) -> str:
        """Return a warning about layers that lie on the ranks in an unknown way, empty if none."""
        whys = [(layer.name, self.why_unknown(layer.parameter)) for layer in layers]
        found = [(name, why) for name, why in whys if why]
        if not found:
            return ""
        (name, why), others = found[0], len(found) - 1
        more = f" and {others} other layers" if others else ""
        return f"parallel: the norms of {name}{more} and the total are not known: {why}"


def _divided_over(
    parameter: Any, meshes: Mapping[Dimension, tuple[int, ...]]
) -> Iterator[Dimension]:
    """Yield the dimensions over which the marks of a parameter divide it."""
    is_expert = mark_of(parameter) == Mark.EXPERT
    if is_expert:
        yield Dimension.EXPERT
    if _is_tensor(parameter):
        own = is_expert and Dimension.EXPERT_TENSOR in meshes
        yield Dimension.EXPERT_TENSOR if own else Dimension.TENSOR


def _is_tensor(parameter: Any) -> bool:
    return any(getattr(parameter, name, False) is True for name in _TENSOR_MARKS)


def mark_of(parameter: Any) -> str:
    """Return the mark of a parameter in a manifest; that of an expert also where it is divided."""
    if any(getattr(parameter, name, False) is True for name in _SHARED_MARKS):
        return Mark.SHARED
    if getattr(parameter, "allreduce", True) is False:
        return Mark.EXPERT
    return Mark.TENSOR if _is_tensor(parameter) else ""


def find_meshes(
    given: Mapping[str, Any] | None, rank: int, world: int
) -> dict[Dimension, tuple[int, ...]]:
    """Return the groups of this rank: those given, else those that libraries have described.

    Args:
        given: The argument of `attach`.

    Raises:
        TypeError: If *given* is no dict of groups.
        ValueError: If a dimension is unknown, or this rank is not in a group.
    """
    if given is None:
        meshes = _described() if world > 1 else {}
    elif isinstance(given, Mapping):
        meshes = {_dimension(name): _ranks(name, group) for name, group in given.items()}
    else:
        msg = f"parallel: a dict of dimension to process group, got {type(given).__name__}"
        raise TypeError(msg)
    for dimension, ranks in meshes.items():
        if len(set(ranks)) < len(ranks) or rank not in ranks or not max(ranks) < world:
            expected = f"ranks below {world}, each once, {rank} among them"
            msg = f"parallel: {dimension}: {expected}, got {ranks!s:.60}"  # may be thousands
            raise ValueError(msg)
    return meshes


def has_marks(layers: Iterable[Layer]) -> bool:
    """Tell whether any parameter says how it lies on the ranks of the tensor group."""
    return any(
        is_distributed(layer.parameter)
        or any(hasattr(layer.parameter, name) for name in _TENSOR_MARKS)
        for layer in layers
    )


def _dimension(name: object) -> Dimension:
    if name not in set(Dimension):
        msg = f"parallel: dimensions are {', '.join(Dimension)}, got {name!r}"
        raise ValueError(msg)
    return Dimension(str(name))


def _ranks(name: str, group: Any) -> tuple[int, ...]:
    """Return the global ranks of a process group, a mesh of one dimension, or a list of ranks."""
    if getattr(group, "ndim", 0) == 1:  # a mesh
        group = group.get_group()
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return tuple(dist.get_process_group_ranks(group))
    if isinstance(group, Sequence) and group and all(type(rank) is int for rank in group):
        return tuple(group)
    msg = f"parallel: {name}: a process group, or a list of global ranks, got {group!r:.60}"
    raise TypeError(msg)


def _described() -> dict[Dimension, tuple[int, ...]]:
    """Return the groups of this process with a description that is known.

    A dimension of which two groups have other ranks is left out.
    """
    found: dict[Dimension, set[tuple[int, ...]]] = {}
    # There is no public list of groups: where a version of torch keeps it elsewhere, none is found.
    state = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    for group in list(getattr(state, "pg_map", ())):
        dimension = _DESCRIPTIONS.get(getattr(group, "group_desc", None) or "")
        if dimension is not None:
            found.setdefault(dimension, set()).add(tuple(dist.get_process_group_ranks(group)))
    return {dimension: ranks.pop() for dimension, ranks in found.items() if len(ranks) == 1}
