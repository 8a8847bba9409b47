"""Findings that matter more where the loss shows harm at the same time."""

from __future__ import annotations

from typing import Final

from gradwatch_server.core.alerting.baselines.judgement import Judgement
from gradwatch_wire.health import Severity

LIKELY: Final = 4.0
"""Standard errors of `LossRise` at which something else that was found is taken for harmful. Alone
it would be told more often than once in 100,000 steps; with another finding it is no chance."""


def is_harmed(judgement: Judgement) -> bool:
    """Tell whether the loss of a frame is so far above its level that a finding does harm."""
    return judgement.loss_rise.exceeds(LIKELY)


def worse_with_loss(severity: Severity, judgement: Judgement) -> Severity:
    """Return a severity, and a warning in place of `info` where the loss is harmed."""
    is_info = severity is Severity.INFO
    return Severity.WARNING if is_info and is_harmed(judgement) else severity
