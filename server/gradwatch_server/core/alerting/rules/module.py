"""Rules that judge modules against what was usual of them, and name the layer inside."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar, Final

import numpy as np

from gradwatch_server.core.alerting.attribution import explosion_ranks, ranks_of
from gradwatch_server.core.alerting.baselines.judgement import FIRST_MODULE, LOSS, Judgement
from gradwatch_server.core.alerting.evaluation import NUM_BEFORE, Context, Evaluation, Verdict
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_server.core.frames.frame import Frame, RankPart
from gradwatch_wire.health import Severity

LARGEST_RISE: Final = 700.0
"""Of a logarithm whose exponential is finite."""

USUAL_FRAMES: Final = 128
"""Frames over which the usual norm of a layer is the median, where an alert names it."""


class ModuleRule(LayerRule):
    """A rule that flags modules: all layers with a norm in them are flagged together.

    Attributes:
        sign: 1 where growth is bad, -1 where a fall is.
    """

    sign: ClassVar[int] = 1

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        """Return the layers of the modules beyond the raising threshold, (layers,)."""
        judgement = context.judge(observation)
        modules = self.raised_modules(observation, judgement, context)
        return layers_of(judgement, modules, observation)

    @abstractmethod
    def raised_modules(self, frame: Frame, judgement: Judgement, context: Context) -> BoolArray:
        """Return the modules beyond the raising threshold, (modules,). Be quick."""

    def held_layers(self, frame: Frame, context: Context) -> BoolArray:
        """Return the layers that are not yet past the clearing threshold, (layers,)."""
        return np.zeros(len(frame.present), dtype=np.bool_)

    def severity_in(
        self, frame: Frame, context: Context, raised: BoolArray, in_a_row: int
    ) -> Severity:
        """Return how much a bad frame matters in which some layers are raised, (layers,)."""
        return self.severity

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield an evaluation of each group of layers."""
        held = raised | self.held_layers(observation, context)
        seen = self.seen(observation)
        excess = self.excess_in(observation, context)
        frozen, _ = observation.idle_layers()
        for group, members in context.groups.items():
            yield Evaluation(
                group=group,
                step=observation.step,
                received_ns=observation.received_ns,
                verdict=Verdict(
                    raised & members, held & members, seen, observation.present, frozen
                ),
                names=context.names,
                origin=partial(self.origin, observation, context),
                severity=partial(self.severity_in, observation, context, raised & members),
                key=self.key(group, observation, context, raised & members),
                excess=excess,
            )

    def excess_in(self, frame: Frame, context: Context) -> FloatArray:
        """Return by what factor each layer is beyond its limit, or its module off, (layers,)."""
        excess = self.excess(frame)
        if excess is not None:
            return excess
        judgement = context.judge(frame)
        off = np.exp(np.minimum(self.sign * judgement.rise[FIRST_MODULE:], LARGEST_RISE))
        return np.nan_to_num(off)[judgement.modules.of_layer[: len(frame.present)]]

    def key(self, group: str, frame: Frame, context: Context, raised: BoolArray) -> str:
        """Return `Evaluation.key`: empty where the origin is this frame."""
        return ""

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return where a frame first shows what was raised: the module that is farthest off."""
        judgement = context.judge(frame)
        module = self.worst_module(judgement, judgement.modules.any_of(raised))
        members = judgement.modules.of_layer[: len(frame.present)] == module
        layer = worst_layer(frame, context, raised & members, self.sign)
        ranks = self.find_ranks(frame, layer)
        series = FIRST_MODULE + module
        is_known = bool(judgement.is_known[series])
        return Origin(
            step=frame.step,
            rank=one_rank(ranks),
            ranks=ranks,
            layer=context.names[layer],
            kind=None,
            value=float(frame.l2_max[layer]),
            threshold=self.threshold(),
            before=context.window.before(layer, NUM_BEFORE),
            usual=usual_norm(layer, context),
            deviations=_finite(judgement.z[series]) if is_known else None,
            notes=notes(frame, judgement, raised),
        )

    def worst_module(self, judgement: Judgement, flagged: BoolArray) -> int:
        """Return the flagged module that is most deviations off; the first of several alike."""
        places = np.flatnonzero(flagged)
        z = np.nan_to_num(self.sign * judgement.z[FIRST_MODULE:][places], nan=-np.inf)
        return int(places[np.argmax(z)])

    def find_ranks(self, frame: Frame, index: int) -> tuple[int, ...]:
        """Return the ranks that a layer's change began on, else those that show it."""
        if self.sign > 0 and (found := explosion_ranks(frame, index)):
            return found
        return ranks_of(part for part in frame.parts if (part.layout.index == index).any())


def layers_of(judgement: Judgement, modules: BoolArray, frame: Frame) -> BoolArray:
    """Return (layers,) the present layers of the flagged modules."""
    if not np.count_nonzero(modules):
        return np.zeros(len(frame.present), dtype=np.bool_)
    return judgement.modules.spread(modules, len(frame.present)) & frame.present


def worst_layer(frame: Frame, context: Context, among: BoolArray, sign: int) -> int:
    """Return the index of the layer that is farthest from its usual norm, as a ratio.

    Of several alike, and without any history, it is the largest, or the smallest; then the first in
    forward order.
    """
    indices = np.flatnonzero(among)
    now = frame.l2_max[indices]
    past = context.window.recent(indices, USUAL_FRAMES)
    usual = medians(past)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = now / usual if sign > 0 else usual / now
    ratio = np.where(np.isnan(ratio), -np.inf, ratio)
    order = np.lexsort((-sign * now, -ratio))
    return int(indices[order[0]])


def ranks_with(
    frame: Frame, index: int, is_broken: Callable[[RankPart], BoolArray]
) -> tuple[int, ...]:
    """Return the ranks whose gradient of a layer breaks the limit.

    A shard's values come from all ranks, and say nothing of the one that holds it.
    """
    found = []
    for part in frame.parts:
        own = part.layout.index == index
        if part.reduced and part.layout.is_sharded[own].any():
            return ()
        if is_broken(part)[own].any():
            found.append(part)
    return ranks_of(found)


def usual_norm(layer: int, context: Context) -> float | None:
    """Return the median norm of a layer over the last frames, None without any."""
    median = float(medians(context.window.recent(np.array([layer]), USUAL_FRAMES))[0])
    return None if math.isnan(median) else median


def notes(frame: Frame, judgement: Judgement, raised: BoolArray) -> tuple[str, ...]:
    """Return what else was seen in a frame that something was raised in."""
    modules = int(np.count_nonzero(judgement.modules.any_of(raised)))
    found = [f"{modules} of {len(judgement.modules.names)} modules"]
    if frame.loss is not None and judgement.is_known[LOSS]:
        usual = float(judgement.mean[LOSS])
        usual = math.exp(usual) if judgement.is_log_loss else usual
        found.append(f"loss {frame.loss:.3g}, usually {usual:.3g}")
    return tuple(found)


def medians(past: FloatArray) -> FloatArray:
    """Return (layers,) medians of what is there, NaN without anything."""
    medians = np.full(past.shape[1], np.nan)
    there = ~np.isnan(past).all(axis=0) if len(past) else np.zeros(past.shape[1], dtype=np.bool_)
    medians[there] = np.nanmedian(past[:, there], axis=0)
    return medians


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
