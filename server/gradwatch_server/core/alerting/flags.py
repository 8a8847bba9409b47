"""Flags of the rules: layers beyond a limit, and the health score that follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.alerting.attribution import was_skipped
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.base import HealthShare, Sign
from gradwatch_server.core.alerting.rules.silent_bugs import may_have_silent_bug
from gradwatch_server.core.arrays import BoolArray, any_true, smallest_of
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import health_score

# Integers: arithmetic with members of an enumeration takes longer than most rules.
_ALWAYS: Final = int(Sign.ALWAYS)
_NONFINITE: Final = int(Sign.NONFINITE)
_UNUSUAL: Final = int(Sign.UNUSUAL)
_ZERO: Final = int(Sign.ZERO)
_REPLICAS: Final = int(Sign.REPLICAS)
_LOCAL_NORMS: Final = int(Sign.LOCAL_NORMS)
_LOSS_SCALE: Final = int(Sign.LOSS_SCALE)
_SMALL: Final = int(Sign.SMALL)
_INCOMPLETE: Final = int(Sign.INCOMPLETE)
_GROUPS: Final = int(Sign.GROUPS)
_SILENT_BUG: Final = int(Sign.SILENT_BUG)
ALL_SIGNS: Final = sum(Sign)

PERFECT: Final = health_score(0.0, 0.0)


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
    signs = ALL_SIGNS
    if type(observation) is Frame:
        signs = _signs_of(observation, rules, context)
    flags = Flags()
    rules_asked = rules.flagging[type(observation), signs]
    if not rules_asked:  # nearly always
        return flags
    limited = context.limited
    with np.errstate(invalid="ignore"):
        for name, rule in rules_asked:
            rule_context = limited.get(name, context) if limited else context
            raised = rule.raised(observation, rule_context)
            if raised is None:
                continue
            if rule_context.watched is not None and rule_context.watched.shape == raised.shape:
                raised = raised & rule_context.watched
            if any_true(raised):  # hardly ever
                for other in rule.yields_to:
                    if other in flags.masks:
                        raised = raised & ~flags.masks[other]
                if any_true(raised):
                    flags.raised.append(name)
            flags.masks[name] = raised
    return flags


def _signs_of(frame: Frame, rules: Rules, context: Context) -> int:
    """Return the signs of a frame that the judge has just taken in."""
    judge, signs = context.judge, _ALWAYS
    findings = judge.findings
    assert findings is not None  # noqa: S101 - the judge has seen the frame
    if not frame.is_finite:
        signs |= _NONFINITE
    if not findings.is_calm or findings.deviations or any_true(findings.is_young):
        signs |= _UNUSUAL
    if judge.state.zeros.any_run:
        signs |= _ZERO
    if frame.disagreement is not None and not frame.disagreement.is_equal:
        signs |= _REPLICAS
    if frame.has_local_norms:
        signs |= _LOCAL_NORMS
    if frame.loss_scale is not None:
        signs |= _LOSS_SCALE
    if judge.state.smallness.any_deep or smallest_of(frame.l2_min) < rules.floor:
        signs |= _SMALL
    if not findings.is_complete:
        signs |= _INCOMPLETE
    if len(context.groups) > 1:  # beside that of the layers in none
        signs |= _GROUPS
    return signs | _bug_sign(frame, context)


def _bug_sign(frame: Frame, context: Context) -> int:
    return _SILENT_BUG if may_have_silent_bug(frame, context.window) else 0


def frame_score(frame: Frame, flags: Flags, rules: Rules) -> float:
    """Return the health score of a closed step, NaN where no layer could be seen."""
    # Of a step that a GradScaler skips nothing stays: it counts as its layers do.
    if not frame.is_finite and not was_skipped(frame):
        return 0.0
    if not flags.raised and frame.has_all_layers and len(frame.present):  # nearly always
        return PERFECT
    num_present = int(np.count_nonzero(frame.present))
    if not num_present:
        return math.nan if frame.num_partial else 1.0
    vanishing = num_layers(HealthShare.VANISHING, flags, rules)
    exploding = num_layers(HealthShare.EXPLODING, flags, rules)
    return health_score(vanishing / num_present, exploding / num_present)


def num_layers(share: HealthShare, flags: Flags, rules: Rules) -> int:
    """Return how many layers count towards *share*, each once."""
    flagged: BoolArray | None = None
    for name in rules.counted_towards[share]:
        mask = flags.masks.get(name)
        if mask is not None and np.count_nonzero(mask):
            flagged = mask if flagged is None else flagged | mask
    return 0 if flagged is None else int(np.count_nonzero(flagged))
