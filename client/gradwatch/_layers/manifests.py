"""Manifests: which layers the columns of a record stand for, declared once per set of layers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwatch._layers.layers import Layer
from gradwatch._layers.parallel import Parallel, mark_of
from gradwatch._layers.pieces import piece_slices
from gradwatch_wire import Column, Manifest
from gradwatch_wire.columns import STATISTIC_COLUMNS
from gradwatch_wire.limits import MAX_MANIFESTS
from gradwatch_wire.names import LayerOrder


class Idle(NamedTuple):
    """Layers that had a gradient before and have none, as indices.

    Args:
        frozen: Whose parameter has `requires_grad` off.
    """

    frozen: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()


_NONE_IDLE: Final = Idle()
_UNTRAINED: Final = ("", math.nan)


class Manifests:
    """Hands out one manifest per set of layers that has gradients together, or one per piece of it.

    Of more than `MAX_MANIFESTS` manifests the oldest are forgotten, and declared anew when their
    layers return.

    Args:
        groups: Named group to indices into `layers`.
        num_pieces: Manifests per set of layers; see `pieces`.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        groups: Mapping[str, frozenset[int]],
        num_pieces: int = 1,
        modules: Sequence[str] = (),
        optimizers: Sequence[Optimizer] = (),
        parallel: Parallel | None = None,
    ) -> None:
        self._parallel = parallel or Parallel()
        self._layers = layers
        self._groups = groups
        self._num_pieces = num_pieces
        self._modules = tuple(modules)
        self._optimizers = optimizers
        self._known: dict[tuple[tuple[int, ...], bool, tuple[torch.dtype, ...], Idle], int] = {}
        self._seen: dict[int | None, set[int]] = {}  # by optimizer, what has had a gradient
        self._num_made = 0
        self._trained: dict[int, tuple[str, float]] = {}  # by identity of the parameter

    def find(
        self,
        indices: tuple[int, ...],
        gradients: Sequence[Tensor],
        *,
        ordered: bool,
        optimizer: int | None = None,
        members: Collection[int] | None = None,
    ) -> tuple[int, list[Manifest]]:
        """Return the id of a set of layers, and its manifests if they have to be sent: it is new.

        The id is that of the manifest of its first piece; those of the others follow it.

        Args:
            indices: The layers, in order.
            gradients: Their gradients; how they are sharded is taken to stay as it is, but
                `model.double()` changes their dtypes.
            ordered: Whether they are in forward order; otherwise in that of registration.
            optimizer: Number of the optimizer that trains them, None for all layers.
            members: All layers that it trains, None for all.
        """
        idle = self._find_idle(indices, optimizer, members)
        key = (indices, ordered, tuple([gradient.dtype for gradient in gradients]), idle)
        known = self._known.get(key)
        if known is not None:
            return known, []
        if (len(self._known) + 1) * self._num_pieces > MAX_MANIFESTS and self._known:
            del self._known[next(iter(self._known))]
        number = self._known[key] = self._num_made + 1
        self._seen[optimizer].update(indices)
        pieces = [
            piece_slices(len(each), self._num_pieces)
            for each in (indices, idle.frozen, idle.unused)
        ]
        made = [
            self._make(
                indices[own],
                gradients[own],
                Idle(idle.frozen[frozen], idle.unused[unused]),
                ordered=ordered,
            )
            for own, frozen, unused in zip(*pieces, strict=True)
        ]
        return number, made

    def _find_idle(
        self, indices: tuple[int, ...], optimizer: int | None, members: Collection[int] | None
    ) -> Idle:
        """Tell what has become of the layers that had a gradient and are not among *indices*.

        Of one that left the model or the optimizer, or whose gradient is there but of a kind that
        cannot be measured, nothing is told.
        """
        seen = self._seen.setdefault(optimizer, set())
        if len(seen) == len(indices):  # nearly always, and then a known set is all that was seen
            return _NONE_IDLE
        frozen: list[int] = []
        unused: list[int] = []
        for index in sorted(seen.difference(indices)):
            parameter = self._layers[index].parameter
            is_trained = members is None or index in members
            if not is_trained or parameter.grad is not None or not parameter.numel():
                continue
            (unused if parameter.requires_grad else frozen).append(index)
        return Idle(tuple(frozen), tuple(unused))

    def forget(self) -> None:
        """Declare all sets anew: layers have become others."""
        self._known.clear()
        self._trained = {}

    def _make(
        self, indices: tuple[int, ...], gradients: Sequence[Tensor], idle: Idle, *, ordered: bool
    ) -> Manifest:
        self._num_made += 1
        layers = [self._layers[index] for index in indices]
        places = {index: place for place, index in enumerate(indices)}
        pairs = list(zip([layer.parameter for layer in layers], gradients, strict=True))
        shards = tuple(self._parallel.shard_of(*pair) for pair in pairs)
        numel = [own.numel() * self._parallel.count_of(own) for own, _ in pairs]
        marks = tuple(mark_of(parameter) for parameter, _ in pairs)
        if not self._trained:
            self._trained = find_trained(self._optimizers)
        trained = [self._trained.get(id(layer.parameter), _UNTRAINED) for layer in layers]
        beta2 = [decay for _, decay in trained]
        optimizers = {name for name, _ in trained if name}
        return Manifest(
            manifest_id=self._num_made,
            names=tuple(layer.name for layer in layers),
            numel=Column.pack("<u8", numel),
            dtypes=tuple(str(gradient.dtype).removeprefix("torch.") for gradient in gradients),
            shards=shards if any(shards) else (),
            columns=tuple(column.name for column in STATISTIC_COLUMNS),
            groups={
                name: tuple(sorted(places[index] for index in members if index in places))
                for name, members in self._groups.items()
            },
            order=LayerOrder.FORWARD if ordered else LayerOrder.REGISTRATION,
            modules=self._modules,
            frozen=tuple(self._layers[index].name for index in idle.frozen),
            unused=tuple(self._layers[index].name for index in idle.unused),
            optimizer=optimizers.pop() if len(optimizers) == 1 else "",
            beta2=None if all(map(math.isnan, beta2)) else Column.pack("<f8", beta2),
            marks=marks if any(marks) else (),
            meshes=self._parallel.columns(),
        )


def find_trained(optimizers: Iterable[Optimizer]) -> dict[int, tuple[str, float]]:
    """Return the class of the optimizer and the decay of its second moment, by parameter's `id`."""
    return {
        id(each): (type(optimizer).__name__, _beta2_of(group))
        for optimizer in optimizers
        for group in optimizer.param_groups
        for each in group["params"]
    }


def _beta2_of(group: Mapping[str, Any]) -> float:
    """Return the decay of the second moment, as Adam and RMSprop name it; NaN without one."""
    match group:
        case {"betas": (_, float(beta2), *_)} | {"alpha": float(beta2), "centered": _}:
            return beta2
        case _:
            return math.nan
