"""Rules about layers: evaluated by the frame of a step, all layers at once, group by group."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import ranks_of
from gradwatch_server.core.alerting.evaluation import NUM_BEFORE, Context, Evaluation, RuleVerdict
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Rule
from gradwatch_server.core.alerting.rules.patterns import (
    Patterns,
    layers_in_groups,
    matching_layers,
)
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import Severity


class LayerRule(Rule):
    """A rule that flags layers of a frame.

    Attributes:
        further_counts: Key to how many layers of a frame, beside the number of flagged ones, that
            `/health` shows under `layers`.
    """

    takes: ClassVar[tuple[type, ...]] = (Frame,)
    further_counts: ClassVar[Mapping[str, Callable[[Frame], int]]] = {}

    layers: Patterns = Field(
        (), description="Patterns of the layers that it watches, of all if empty."
    )
    groups: Patterns = Field(
        (),
        description="Patterns of the groups whose layers it watches, of all if empty; `all` is "
        "the group of the layers that are in no named one.",
    )

    def watched(self, names: tuple[str, ...], groups: Mapping[str, BoolArray]) -> BoolArray | None:
        """Return the layers that the rule is limited to, (layers,), None if it is to none."""
        if not self.layers and not self.groups:
            return None
        watched = matching_layers(self.layers, names)
        return (
            watched & layers_in_groups(self.groups, groups, len(names)) if self.groups else watched
        )

    @abstractmethod
    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return the layers beyond the raising threshold, (layers,); None if none is."""

    def held(self, frame: Frame, raised: BoolArray) -> BoolArray:
        """Return the layers not yet past the clearing threshold, (layers,), all raised ones too."""
        return raised

    def seen(self, frame: Frame) -> BoolArray:
        """Return the layers that the rule could see, (layers,)."""
        return frame.present

    @classmethod
    def values(cls, frame: Frame) -> FloatArray:
        """Return the number by which the rule goes, (layers,): the larger, the worse."""
        return frame.l2_max

    @classmethod
    def worst_first(cls, frame: Frame, flagged: BoolArray) -> IndexArray:
        indices = np.flatnonzero(flagged)
        return indices[np.argsort(-cls.values(frame)[indices], kind="stable")]

    def threshold(self) -> float | None:
        """Return the limit that an origin names, None if there is none."""
        return None

    def excess(self, frame: Frame) -> FloatArray | None:
        """Return by what factor each layer is beyond the limit, (layers,); None without a limit."""
        limit = self.threshold()
        if limit is None:
            return None
        with np.errstate(over="ignore"):  # Inf is as much beyond the limit as can be told
            return self.values(frame) / limit

    def find_layer(self, frame: Frame, raised: BoolArray) -> int | None:
        """Return the index of the layer to name as origin, None if it cannot be known."""
        return int(self.worst_first(frame, raised)[0])

    def find_ranks(self, frame: Frame, index: int) -> tuple[int, ...]:
        """Return the ranks that the origin in a layer is of: all that reported it."""
        return ranks_of(part for part in frame.parts if (part.layout.index == index).any())

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return where a frame first shows what was raised."""
        known = self.find_layer(frame, raised)
        index = int(self.worst_first(frame, raised)[0]) if known is None else known
        ranks = self.find_ranks(frame, index)
        return Origin(
            step=frame.step,
            rank=ranks[0] if len(ranks) == 1 else None,
            ranks=ranks,
            layer=None if known is None else context.names[known],
            kind=None,
            value=float(self.values(frame)[index]),
            threshold=self.threshold(),
            before=() if known is None else context.window.before(known, NUM_BEFORE),
        )

    def severity_of(self, frame: Frame, in_a_row: int) -> Severity:
        """Return how much a bad frame matters; *in_a_row* counts the bad frames up to it."""
        return self.severity

    def severity_with(self, frame: Frame, context: Context, in_a_row: int) -> Severity:
        """Return the same, where it depends on what else is known of the attempt."""
        return self.severity_of(frame, in_a_row)

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        held, seen = self.held(observation, raised), self.seen(observation)
        excess, (frozen, _) = self.excess(observation), observation.idle_layers()
        for group, members in context.groups.items():
            yield Evaluation(
                group=group,
                step=observation.step,
                received_ns=observation.received_ns,
                verdict=RuleVerdict(
                    raised & members, held & members, seen, observation.present, frozen
                ),
                names=context.names,
                origin=partial(self.origin, observation, context),
                severity=partial(self.severity_with, observation, context),
                excess=excess,
            )
