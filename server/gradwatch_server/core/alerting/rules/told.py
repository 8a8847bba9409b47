"""What an alert tells of already for as long as it goes on, so that others are silent of it."""

from __future__ import annotations

import numpy as np

from gradwatch_server.core.alerting.baselines.judgement import FIRST_MODULE
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.rules.exploding import ExplodingMemory
from gradwatch_server.core.alerting.rules.spike import SpikeMemory
from gradwatch_server.core.alerting.rules.vanishing import VanishingMemory
from gradwatch_server.core.arrays import BoolArray


def told_modules(context: Context, number: int) -> BoolArray:
    """Return (modules,) those that have jumped or fallen, and are not back where they were.

    The flags of these rules fall silent when what is usual has caught up; their alerts go on.
    """
    told = np.zeros(number, dtype=np.bool_)
    for memory in context.memories.values():
        if isinstance(memory, SpikeMemory):
            away = memory.away[FIRST_MODULE:]
        elif isinstance(memory, ExplodingMemory):
            away = context.baselines.modules.any_of(~np.isnan(memory.before))
        elif isinstance(memory, VanishingMemory):
            away = memory.away
        else:
            continue
        told[: len(away)] |= away
    return told
