"""Flags: what each rule finds beyond its limit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.arrays import BoolArray


@dataclass
class Flags:
    """Masks of the rules: (layers,) of a rule about layers, (1,) of a rule about the run.

    Attributes:
        raised: Names of the rules that found something, in the order of evaluation.
    """

    masks: dict[str, BoolArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.raised = [name for name, mask in self.masks.items() if np.count_nonzero(mask)]


def find_flags(observation: object, rules: Rules, context: Context) -> Flags:
    """Ask each rule that takes such an observation, one that is off only if health counts it."""
    found = Flags()
    limited = context.limited
    with np.errstate(invalid="ignore"):
        for name, rule in rules.flagging(type(observation)):
            own = limited.get(name, context) if limited else context
            raised = rule.raised(observation, own)
            if raised is None:
                continue
            if own.watched is not None and own.watched.shape == raised.shape:
                raised = raised & own.watched
            if np.count_nonzero(raised):  # hardly ever
                for other in rule.yields_to:
                    if other in found.masks:
                        raised = raised & ~found.masks[other]
                if np.count_nonzero(raised):
                    found.raised.append(name)
            found.masks[name] = raised
    return found
