"""Flags: what each rule finds beyond its limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.base import Sign
from gradwatch_server.core.arrays import BoolArray, any_true
from gradwatch_server.core.frames.frame import Frame

# Integers: arithmetic with members of an enumeration takes longer than most rules.
_ALWAYS: Final = int(Sign.ALWAYS)
_NONFINITE: Final = int(Sign.NONFINITE)
_UNUSUAL: Final = int(Sign.UNUSUAL)
_ZERO: Final = int(Sign.ZERO)
_REPLICAS: Final = int(Sign.REPLICAS)
_LOCAL_NORMS: Final = int(Sign.LOCAL_NORMS)
_LOSS_SCALE: Final = int(Sign.LOSS_SCALE)
ALL_SIGNS: Final = sum(Sign)


@dataclass
class Flags:
    """Masks of the rules: (layers,) of a rule about layers, (1,) of a rule about the run.

    Attributes:
        raised: Names of the rules that found something, in the order of evaluation.
    """

    masks: dict[str, BoolArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.raised = [name for name in self.masks if any_true(self.masks[name])]


def find_flags(observation: object, rules: Rules, context: Context) -> Flags:
    """Ask each rule that may find something, one that is off only if health counts it."""
    signs = _signs_of(observation, context) if type(observation) is Frame else ALL_SIGNS
    found = Flags()
    limited = context.limited
    with np.errstate(invalid="ignore"):
        for name, rule in rules.flagging(type(observation), signs):
            own = limited.get(name, context) if limited else context
            raised = rule.raised(observation, own)
            if raised is None:
                continue
            if own.watched is not None and own.watched.shape == raised.shape:
                raised = raised & own.watched
            if any_true(raised):  # hardly ever
                for other in rule.yields_to:
                    if other in found.masks:
                        raised = raised & ~found.masks[other]
                if any_true(raised):
                    found.raised.append(name)
            found.masks[name] = raised
    return found


def _signs_of(frame: Frame, context: Context) -> int:
    """Return the signs of a frame that the judge has just taken in."""
    findings, signs = context.findings, _ALWAYS
    if not frame.is_finite:
        signs |= _NONFINITE
    if not findings.is_calm or findings.deviations or any_true(findings.is_young):
        signs |= _UNUSUAL
    if context.judge.state.zeros.any_run:
        signs |= _ZERO
    if frame.disagreement is not None:
        signs |= _REPLICAS
    if frame.has_local_norms:
        signs |= _LOCAL_NORMS
    if frame.loss_scale is not None:
        signs |= _LOSS_SCALE
    return signs
