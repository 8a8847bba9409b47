"""Sightings: what each rule says of a frame, with what an alert of it would have to tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from gradwatch_server.core.alerting.origin import Origin, find_gain_origin, find_layer, find_origin
from gradwatch_server.core.alerting.rules import (
    Flags,
    LayerRuleName,
    RuleName,
    Rules,
    Verdict,
    gain_verdict,
    loss_verdict,
    severity,
    verdict,
)
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.losses import LostRange, loss_origin
from gradwatch_wire.health import Severity

ALL_LAYERS: Final = "all"
"""The group of the layers that are in no named group."""

BLOCKS: Final = "blocks"
"""The group of the rule about the flow between blocks."""

RECORDS: Final = "records"
"""The group of the rule about lost records."""

NUM_BEFORE: Final = 5
"""Frames before the first bad one that an origin shows."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the rules need to know of the attempt that a frame belongs to."""

    run: str
    attempt: int
    names: tuple[str, ...]
    groups: Mapping[str, BoolArray]  # (layers,) each
    window: Window


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one rule says of one group at one step.

    Args:
        rule: Name of the rule.
        group: Name of the group.
        step: The step.
        received_ns: When the last record of it came in.
        verdict: The layers that are bad, or one flag each for a rule that is about the run.
        names: Of the layers of the verdict; none if it is about the run.
        origin: Says where what is raised began.
        severity: How much it matters, by how many times in a row it is bad.
        key: What the alert's id is made of in place of the group, where one step may see several
            alerts of it begin.
    """

    rule: RuleName
    group: str
    step: int
    received_ns: int
    verdict: Verdict
    names: tuple[str, ...]
    origin: Callable[[BoolArray], Origin]
    severity: Callable[[int], Severity]
    key: str = ""


def sight(
    name: LayerRuleName, frame: Frame, marked: Flags, rules: Rules, context: Context
) -> Iterator[Evaluation]:
    """Judge a frame by a rule about layers, each group by itself."""
    judged = verdict(name, frame, marked, rules)
    for group, members in context.groups.items():
        yield Evaluation(
            rule=name,
            group=group,
            step=frame.step,
            received_ns=frame.received_ns,
            verdict=Verdict(judged.raised & members, judged.held & members, judged.seen),
            names=context.names,
            origin=partial(_origin, name, frame, rules, context),
            severity=partial(severity, name, frame, rules),
        )


def sight_gains(frame: GainFrame, rules: Rules) -> Evaluation:
    """Judge the gains of a step."""
    return Evaluation(
        rule="gain",
        group=BLOCKS,
        step=frame.step,
        received_ns=frame.received_ns,
        verdict=gain_verdict(frame.gains, rules.gain),
        names=(),
        origin=lambda _: find_gain_origin(frame, rules.gain),
        severity=lambda _: rules.gain.severity,
    )


def sight_loss(rank: int, lost: LostRange, now_ns: int, rules: Rules) -> Evaluation:
    """Judge a declared loss."""
    origin = loss_origin(rank, lost)
    return Evaluation(
        rule="records_lost",
        group=RECORDS,
        step=origin.step,
        received_ns=now_ns,
        verdict=loss_verdict(lost=True),
        names=(),
        origin=lambda _: origin,
        severity=lambda _: rules.records_lost.severity,
        key=f"{RECORDS}/{rank}/{lost.first}",
    )


def sight_no_loss(frame: Frame, rules: Rules) -> Evaluation:
    """Judge a frame as one without a new loss."""
    return Evaluation(
        rule="records_lost",
        group=RECORDS,
        step=frame.step,
        received_ns=frame.received_ns,
        verdict=loss_verdict(lost=False),
        names=(),
        origin=lambda _: Origin(frame.step, None, (), None, None, 0.0, None),
        severity=lambda _: rules.records_lost.severity,
    )


def _origin(
    name: LayerRuleName, frame: Frame, rules: Rules, context: Context, raised: BoolArray
) -> Origin:
    origin = find_origin(name, frame, raised, rules, context.names)
    index = find_layer(name, frame, raised)
    if index is None:
        return origin
    return replace(origin, before=context.window.before(index, NUM_BEFORE))
