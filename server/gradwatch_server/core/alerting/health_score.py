"""The health score of one frame: from the layers that rules count towards it."""

from __future__ import annotations

import math

import numpy as np

from gradwatch_server.core.alerting.attribution import was_skipped
from gradwatch_server.core.alerting.flags import Flags
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.base import HealthShare
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import health_score


def frame_score(frame: Frame, flags: Flags, rules: Rules) -> float:
    """Return the health score of a closed step, NaN where no layer could be seen."""
    # Of a step that a GradScaler skips nothing stays: it counts as its layers do.
    if not frame.is_finite and not was_skipped(frame):
        return 0.0
    if not flags.raised and frame.has_all_layers and len(frame.present):  # nearly always
        return health_score(0.0, 0.0)
    num_present = int(np.count_nonzero(frame.present))
    if not num_present:
        return math.nan if frame.num_partial else 1.0
    vanishing = num_layers(HealthShare.VANISHING, flags, rules)
    exploding = num_layers(HealthShare.EXPLODING, flags, rules)
    return health_score(vanishing / num_present, exploding / num_present)


def num_layers(share: HealthShare, flags: Flags, rules: Rules) -> int:
    """Return how many layers count towards *share*, each once."""
    found: BoolArray | None = None
    for name in rules.counted_towards[share]:
        mask = flags.masks.get(name)
        if mask is not None and np.count_nonzero(mask):
            found = mask if found is None else found | mask
    return 0 if found is None else int(np.count_nonzero(found))
