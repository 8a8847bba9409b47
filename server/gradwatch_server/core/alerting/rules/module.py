"""Rules about modules that leave their usual norms, by the findings of the judge."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import ranks_of, rising_ranks
from gradwatch_server.core.alerting.causes import find_cause
from gradwatch_server.core.alerting.evaluation import NUM_BEFORE, Context, Evaluation, RuleVerdict
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import Steps
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_server.core.frames.frame import Frame, RankRecord
from gradwatch_server.core.judge.deviations import Deviation, DeviationKind
from gradwatch_server.core.judge.findings import Findings
from gradwatch_server.core.judge.series import FIRST_MODULE
from gradwatch_wire.health import Severity

LARGEST_RISE: Final = 700.0
"""Of a logarithm whose exponential is finite."""

MATERIAL: Final = 0.1
"""Share of the module's largest norm from which on a layer of it may be named."""


class ModuleRule(LayerRule):
    """A rule that flags modules: all layers with a norm in them are flagged together.

    Attributes:
        sign: 1 where growth is bad, -1 where a fall is.
    """

    sign: ClassVar[int] = 1
    kinds: ClassVar[tuple[DeviationKind, ...]] = ()

    clear_steps: Steps = Field(
        16, description="Consecutive frames that must be good before a firing alert is resolved."
    )

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return the layers that are beyond their record, or not yet back; None if none is."""
        findings = context.findings
        raised = self.raised_layers(observation, findings, context)
        if findings.is_calm:  # nearly always
            return raised
        held = self.held_modules(findings)
        if raised is None and not np.count_nonzero(held):
            return None
        layers = layers_of(context, held, observation)
        return layers if raised is None else layers | raised

    @abstractmethod
    def raised_layers(self, frame: Frame, findings: Findings, context: Context) -> BoolArray | None:
        """Return (layers,) those beyond the raising threshold, None if none is. Be quick."""

    @abstractmethod
    def held_modules(self, findings: Findings) -> BoolArray:
        """Return (modules,) those that are not back where they were."""

    def held_layers(self, frame: Frame, context: Context) -> BoolArray:
        """Return further layers that keep an alert that is there, (layers,)."""
        return np.zeros(len(frame.present), dtype=np.bool_)

    def severity_in(
        self, frame: Frame, context: Context, raised: BoolArray, in_a_row: int
    ) -> Severity:
        """Return how much a bad frame matters in which some layers are raised, (layers,)."""
        return Severity.CRITICAL if context.findings.is_diverging else self.severity

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        beyond = self.raised_layers(observation, context.findings, context)
        now = np.zeros_like(raised) if beyond is None else beyond & raised
        held = raised | self.held_layers(observation, context)
        seen = self.seen(observation)
        excess = self.excess_in(observation, context)
        frozen, _ = observation.idle_layers()
        for group, members in context.groups.items():
            yield Evaluation(
                group=group,
                step=observation.step,
                received_ns=observation.received_ns,
                verdict=RuleVerdict(
                    now & members, held & members, seen, observation.present, frozen
                ),
                names=context.names,
                origin=partial(self.origin, observation, context),
                severity=partial(self.severity_in, observation, context, raised & members),
                key=self.key(group, observation, context),
                excess=excess,
            )

    def excess_in(self, frame: Frame, context: Context) -> FloatArray:
        """Return by what factor the module of each layer is off, (layers,)."""
        rise = self.sign * context.judge.detector.rise[0, FIRST_MODULE::2]
        off = np.exp(np.minimum(rise, LARGEST_RISE))
        return np.nan_to_num(off)[context.judge.modules.of_layer[: len(frame.present)]]

    def key(self, group: str, frame: Frame, context: Context) -> str:
        """Return what ids are made of: two changes may be found to have begun at one step."""
        return f"{group} {frame.step}"

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return where and when it began: of several modules, none if one does not stand out.

        The value, and what is said of it, is that of the module that is farthest off.
        """
        judge, findings = context.judge, context.findings
        deviation = findings.largest(*self.kinds)
        modules = judge.modules.any_of(raised)
        farthest = self.farthest(context, modules)
        if deviation is None:
            return self.origin_in(frame, context, raised, farthest)
        first = judge.module_of(deviation)
        module = farthest if first is None or not modules[first] else first
        made = self.origin_in(frame, context, raised, module, deviation)
        if first is None:
            made = replace(made, layer=None, farthest=made.layer)
        step = judge.step_of(deviation)
        if step < frame.step:
            made = replace(made, step=step, before=_before(step, made, context))
        return replace(made, cause=find_cause(frame, context, made))

    def farthest(self, context: Context, flagged: BoolArray) -> int:
        """Return the flagged module that is most nats off; the first of several alike."""
        places = np.flatnonzero(flagged)
        rise = self.sign * context.judge.detector.rise[0, FIRST_MODULE::2][places]
        return int(places[np.argmax(np.nan_to_num(rise, nan=-np.inf))])

    def origin_in(
        self,
        frame: Frame,
        context: Context,
        raised: BoolArray,
        module: int,
        deviation: Deviation | None = None,
    ) -> Origin:
        judge = context.judge
        members = raised & (judge.modules.of_layer[: len(frame.present)] == module)
        layer = worst_layer(frame, context, members, self.sign)
        ranks = self.began_on(frame, context, members) or self.find_ranks(frame, layer)
        return Origin(
            step=frame.step,
            rank=one_rank(ranks),
            ranks=ranks,
            layer=context.names[layer],
            kind=None,
            value=float(frame.l2_max[layer]),
            threshold=None,
            before=context.window.before(layer, NUM_BEFORE),
            usual=usual_norm(layer, context),
            deviations=_deviations(context, deviation),
            notes=notes(frame, context, raised),
        )

    def began_on(self, frame: Frame, context: Context, layers: BoolArray) -> tuple[int, ...]:
        """Return the rank that a rise of some layers, (layers,), began on; none if not known."""
        if self.sign < 0:
            return ()
        return rising_ranks(frame, layers, context.judge.usual_loss())


def layers_of(context: Context, modules: BoolArray, frame: Frame) -> BoolArray:
    """Return (layers,) the present layers of the flagged modules."""
    if not np.count_nonzero(modules):
        return np.zeros(len(frame.present), dtype=np.bool_)
    return context.judge.modules.spread(modules, len(frame.present)) & frame.present


def worst_layer(frame: Frame, context: Context, among: BoolArray, sign: int) -> int:
    """Return the index of the layer that is farthest from its usual norm, as a ratio.

    Of those that matter for the norm of the module. Of several alike, and without any history, it
    is the largest, or the smallest; then the first in forward order.
    """
    indices = np.flatnonzero(among)
    now = frame.l2_max[indices]
    usual = context.window.usual(indices)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = now / usual if sign > 0 else usual / now
        matters = (now if sign > 0 else np.nan_to_num(usual)) >= MATERIAL * np.nanmax(
            now if sign > 0 else np.nan_to_num(usual)
        )
    ratio = np.where(np.isnan(ratio) | ~matters, -np.inf, ratio)
    order = np.lexsort((-sign * now, -ratio))
    return int(indices[order[0]])


def ranks_with(
    frame: Frame, index: int, is_broken: Callable[[RankRecord], BoolArray]
) -> tuple[int, ...]:
    """Return the ranks whose gradient of a layer breaks the limit.

    A shard's values come from all ranks, and say nothing of the one that holds it.
    """
    ranks = []
    for part in frame.parts:
        at_layer = part.layout.index == index
        if part.reduced and part.layout.is_sharded[at_layer].any():
            return ()
        if is_broken(part)[at_layer].any():
            ranks.append(part)
    return ranks_of(ranks)


def usual_norm(layer: int, context: Context) -> float | None:
    """Return the usual norm of a layer before this frame, None without any."""
    usual = float(context.window.usual(np.array([layer]))[0])
    return None if math.isnan(usual) else usual


def notes(frame: Frame, context: Context, raised: BoolArray) -> tuple[str, ...]:
    """Return what else was seen in a frame that something was raised in."""
    judge = context.judge
    modules = int(np.count_nonzero(judge.modules.any_of(raised)))
    texts = [f"{modules} of {len(judge.modules.names)} modules"]
    usual = judge.usual_loss()
    if frame.loss is not None and usual is not None:
        texts.append(f"loss {frame.loss:.3g}, usually {usual:.3g}")
    return tuple(texts)


def began_before(origin: Origin, context: Context, frames: int) -> Origin:
    """Return an origin so many frames before, as far as the window goes back."""
    steps = context.window.series().steps
    if frames < 1 or not len(steps):
        return origin
    began = int(steps[max(0, len(steps) - frames)])
    return replace(origin, step=began, before=_before(began, origin, context))


def _before(step: int, origin: Origin, context: Context) -> tuple[tuple[int, float], ...]:
    """Return the norms of the origin's layer in the few frames before a step."""
    if origin.layer is None:
        return ()
    layer = context.names.index(origin.layer)
    known = context.window.before(layer, context.window.capacity)
    return tuple(norm for norm in known if norm[0] < step)[-NUM_BEFORE:]


def _deviations(context: Context, deviation: Deviation | None) -> float | None:
    if deviation is None:
        return None
    usual = float(context.judge.detector.deviation[deviation.series])
    return deviation.rise / usual if usual > 0.0 and math.isfinite(deviation.rise) else None
