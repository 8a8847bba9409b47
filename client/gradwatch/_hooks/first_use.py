"""First use of each parameter in a forward pass, read from the graph that autograd built.

Autograd numbers the nodes of a graph as the forward pass makes them. The node with the lowest
number that takes a parameter is its first use. That is exact in eager mode, under DDP, with tensor
parallelism and with non-reentrant checkpointing. `torch.compile` makes one node of a whole graph,
whose inputs are listed in the order in which the traced code met them. (Code that only looks at a
parameter, as in `next(self.parameters()).dtype`, meets it, too; see `_met_early`. One that has no
other parameter beside it in its module is then listed where it was looked at, and nothing shows.)

A parameter inside a reentrant checkpoint or another autograd function of the user's is not found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

IN_GRAPH: Final = 1
"""Second element of a `Moment` that a node of the graph shows."""

LISTS_AS_MET: Final = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)
"""Before torch 2.5 Dynamo kept modules whole, and lost the order inside a checkpoint."""

COMPILED: Final = "CompiledFunctionBackward"

Moment: TypeAlias = tuple[int, int, int]
"""Number of the node, what shows it, place among the inputs of the node: ordered as time is."""


@dataclass(frozen=True, slots=True)
class FirstUse:
    """The first use of a parameter: when, and in which kind of node."""

    moment: Moment
    kind: str
    """Name of the node if it is a Python function (compiled code is one), else empty."""


def first_uses(outputs: Iterable[Tensor]) -> dict[int, FirstUse]:
    """Return the first use of every parameter from which the tensors were computed.

    Args:
        outputs: Tensors that have a `grad_fn`; others have no graph.

    Returns:
        `id` of the parameter to its use.
    """
    accumulates = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]  # not in the stub
    found: dict[int, FirstUse] = {}
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    known: set[Node] = set(waiting)
    while waiting:
        node = waiting.pop()
        number = node._sequence_nr()
        for place, (source, _) in enumerate(node.next_functions):
            if source is None:
                continue
            if type(source) is accumulates:
                _note(found, id(source.variable), (number, IN_GRAPH, place), node)  # type: ignore[attr-defined]  # AccumulateGrad has
            elif source not in known:
                known.add(source)
                waiting.append(source)
    return found


def _note(found: dict[int, FirstUse], parameter: int, moment: Moment, node: Node) -> None:
    use = found.get(parameter)
    if use is None or moment < use.moment:
        found[parameter] = FirstUse(
            moment, node.name() if isinstance(node, BackwardCFunction) else ""
        )


def moments_of(uses: Mapping[int, FirstUse], owners: Mapping[int, str]) -> dict[int, Moment]:
    """Return the moments of those uses whose order is known.

    Args:
        owners: Layer index to the name of the module that the parameter belongs to.
    """
    doubtful: set[int] = set()
    in_turn = sorted(uses, key=lambda index: uses[index].moment)
    for _, group in groupby(in_turn, key=lambda index: uses[index].moment[0]):
        together = list(group)
        kind = uses[together[0]].kind
        if kind == COMPILED and LISTS_AS_MET:
            doubtful |= _met_early(together, owners)
        elif kind and len({owners[index] for index in together}) > 1:
            # A function of the user's (or DataParallel's broadcast) that takes the parameters of
            # several modules lists them as it likes.
            doubtful.update(together)
    return {index: use.moment for index, use in uses.items() if index not in doubtful}


def _met_early(places: Sequence[int], owners: Mapping[int, str]) -> set[int]:
    """Return the layers of a compiled graph whose place may not be that of their use.

    Code that only looks at a parameter (`next(self.parameters()).dtype`) makes the compiler list it
    there. It then stands apart from the other parameters of its module. Modules that have modules
    of their own may well use theirs at different times.
    """
    runs = Counter(owner for owner, _ in groupby(places, key=owners.__getitem__))
    names = set(owners.values())
    torn = {
        owner
        for owner, count in runs.items()
        if count > 1 and owner and not any(name.startswith(f"{owner}.") for name in names)
    }
    return {index for index in places if owners[index] in torn}
