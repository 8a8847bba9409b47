"""Distribution of layers over the ranks of a job that is parallel in several dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import BoolArray, numbers
from gradwatch_wire import Manifest
from gradwatch_wire.names import Dimension, Mark

_WORDS: Final = {Dimension.PIPELINE: "pipeline stage", Dimension.EXPERT_TENSOR: "expert tensor"}


@dataclass
class Distribution:
    """Layers by the pipeline stages that hold them.

    A weight that two stages hold, such as a tied embedding, is marked as shared in all but one of
    them. Another name that two stages have is of two different layers, or of a copy without a
    mark: nobody can tell.

    Args:
        copies: Layers that ranks marked as shared.
        originals: Layers that ranks did not mark so.
        stage_of: Layer to the first stage that declared it without such a mark.
        unclear: Layers that several stages declared so.
        unknown: Layers of which a rank does not know how they lie on the ranks.
    """

    copies: set[int] = field(default_factory=set)
    originals: set[int] = field(default_factory=set)
    stage_of: dict[int, int] = field(default_factory=dict)
    unclear: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)

    def add(self, index: Sequence[int], marks: Sequence[str], stage: int | None) -> None:
        """Note the layers of a manifest.

        Args:
            marks: Mark of each; empty for none.
            stage: Stage of its rank, None where it is not known.
        """
        for place, mark in zip_longest(index, marks, fillvalue=""):
            if mark == Mark.SHARED:
                self.copies.add(int(place))
                continue
            self.originals.add(int(place))
            if stage is not None and self.stage_of.setdefault(int(place), stage) != stage:
                self.unclear.add(int(place))

    def masks(self, num_layers: int) -> tuple[BoolArray, BoolArray]:
        """Return (layers,) which are copies of others, and which are not known."""
        masks = np.zeros((2, num_layers), dtype=np.bool_)
        masks[0, list(self.copies - self.originals)] = True
        masks[1, list(self.unclear)] = True
        return masks[0], masks[1]

    def why_unknown(self, names: Sequence[str]) -> str:
        """Return why the norms of some layers are not known, empty if they are."""
        if self.unclear:
            layer = names[min(self.unclear)]
            reason = "name in several pipeline stages; mark copies `shared`, name stages by a dict"
            return f"{_layers(layer, len(self.unclear))}: norms not known: {reason}"
        if self.unknown:
            layer = names[min(self.unknown)]
            reason = "no mark or group tells how they lie on the ranks; attach said which"
            return f"{_layers(layer, len(self.unknown))}: norms not known: {reason}"
        return ""


def _layers(name: str, count: int) -> str:
    return f"{name} and {count - 1} other layers" if count > 1 else name


def find_stage(manifest: Manifest, rank: int) -> int | None:
    """Return the pipeline stage of a rank, None without several."""
    places = dict(_places(manifest, rank))
    return places.get(Dimension.PIPELINE)


def find_place(manifest: Manifest, rank: int) -> str:
    """Return the place of a rank in words, such as `pipeline stage 1, tensor 0`; else empty."""
    places = _places(manifest, rank)
    return ", ".join(f"{_WORDS.get(each, each.value)} {number}" for each, number in places)


def _places(manifest: Manifest, rank: int) -> list[tuple[Dimension, int]]:
    """Return the dimensions of more than one rank, and the place of the rank in each."""
    if not manifest.meshes:
        return []
    groups = [
        (dimension, numbers(manifest.meshes[dimension]).astype(np.int64).tolist())
        for dimension in Dimension
        if dimension in manifest.meshes and manifest.meshes[dimension].code == "<u4"
    ]
    return [(each, ranks.index(rank)) for each, ranks in groups if len(ranks) > 1 and rank in ranks]
