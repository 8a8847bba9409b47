"""Named groups of layers: their norms at the last step, and how they compare."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwatch_server.core.frames.merging import total_norm
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_wire.columns import L2
from gradwatch_wire.health import normalized_ratio


@dataclass(frozen=True, slots=True)
class Group:
    """A named group at one step, over those of its layers that were measured.

    The norm is None without any.
    """

    name: str
    layers: int
    numel: int
    l2: float | None


def groups_of(view: RunView) -> list[Group]:
    """Return the named groups at the last step, in the order in which they were declared."""
    frame = view.frame
    described = []
    for name, members in view.groups.items():
        if frame is None:
            described.append(Group(name, 0, 0, None))
            continue
        index = np.flatnonzero(members[: len(frame.present)] & frame.present)
        l2 = total_norm(frame.column(L2)[index]) if len(index) else None
        numel = sum(view.numel[i] for i in index.tolist())
        described.append(Group(name, len(index), numel, l2))
    return described


def describe_groups(view: RunView) -> dict[str, Any]:
    """Return what `/runs/{run}/groups` says: each group, and the ratios both ways."""
    groups = groups_of(view)
    pairs = itertools.permutations(groups, 2)
    return {
        "step": view.frame.step if view.frame else None,
        "groups": [
            {"name": g.name, "layers": g.layers, "numel": g.numel, "l2": g.l2} for g in groups
        ],
        "ratios": {f"{one.name}/{other.name}": ratio(one, other) for one, other in pairs},
    }


def ratios(view: RunView) -> dict[str, float | None]:
    """Return the ratio of each pair of groups once: the later declared over the earlier."""
    pairs = itertools.combinations(groups_of(view), 2)
    return {f"{late.name}/{early.name}": ratio(late, early) for early, late in pairs}


def ratio(seed: Group, host: Group) -> float | None:
    """Return the normalised ratio of two groups, NaN if one is not finite, None if not measured."""
    if seed.l2 is None or host.l2 is None:
        return None
    if not (math.isfinite(seed.l2) and math.isfinite(host.l2)):
        return math.nan
    return normalized_ratio(seed.l2, seed.numel, host.l2, host.numel)
