"""Flags: what each rule finds beyond its limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.packing import pack, unpack_flags


class Flags(dict[str, BoolArray]):
    """Rule to mask: (layers,) of a rule about layers, (1,) of a rule about the run.

    Attributes:
        raised: Names of the rules that found something, in the order of evaluation.
    """

    def __init__(self, masks: Mapping[str, BoolArray] | None = None) -> None:
        super().__init__(masks or {})
        self.raised = [name for name, mask in self.items() if np.count_nonzero(mask)]


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
                    if other in found:
                        raised = raised & ~found[other]
                if np.count_nonzero(raised):
                    found.raised.append(name)
            found[name] = raised
    return found


def flags_state_dict(flags: Flags) -> dict[str, Any]:
    """Return plain data for `flags_from_state_dict`."""
    return {name: pack(mask) for name, mask in flags.items()}


def flags_from_state_dict(plain: Mapping[str, Any]) -> Flags:
    """Return what `flags_state_dict` described: the rules that there were then."""
    return Flags({name: unpack_flags(packed) for name, packed in plain.items()})
