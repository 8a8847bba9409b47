"""In which order modules return, by the order in which the forward pass uses their layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn


def module_ranks(
    modules: Sequence[nn.Module], layers: Sequence[nn.Parameter], tops: Sequence[nn.Module]
) -> tuple[int | None, ...]:
    """Return the rank of each module among those that return, None where that is not known.

    Of two modules that are called once each, either one is called inside the other or all of the
    one happens before all of the other: any layer of each tells which.

    Args:
        modules: They may lie within each other.
        layers: In forward order; none if that is not known.
        tops: The models that they are in.
    """
    parts = {id(part): part for top in tops for part in top.modules()}
    owners = Counter(id(p) for part in parts.values() for p in set(part._parameters.values()))
    # A shared layer is used in several places, and stands at the first of them.
    places = {id(p): place for place, p in enumerate(layers) if owners[id(p)] == 1}
    last = {
        number: max(own)
        for number, module in enumerate(modules)
        if (own := [places[id(p)] for p in module.parameters() if id(p) in places])
    }
    # What is inside of another has no more parts than that, and returns before it.
    order = sorted(
        last, key=lambda number: (last[number], sum(1 for _ in modules[number].modules()))
    )
    ranks = {number: rank for rank, number in enumerate(order)}
    return tuple(ranks.get(number) for number in range(len(modules)))
