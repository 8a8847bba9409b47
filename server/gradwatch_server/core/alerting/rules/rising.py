"""Rules about norms that rise: in which module it began, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from gradwatch_server.core.alerting.baselines.judgement import FIRST_MODULE, Judgement
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.module import ModuleRule, notes
from gradwatch_server.core.alerting.rules.slow import Beginning, began_at, rise_of
from gradwatch_server.core.alerting.wording import place, shown
from gradwatch_server.core.arrays import BoolArray, IndexArray
from gradwatch_server.core.frames.frame import Frame

LN_LEAST: Final = 0.6931471805599453
"""ln 2: what has less than doubled has not risen."""

DEVIATIONS: Final = 4.0

STANDS_OUT: Final = 3.0
"""A module is the one if the logarithm of its rise is so many times that of any other."""

MAX_COMPARED: Final = 16
"""Modules of which it is looked for when each of them began to rise."""

BEGINNING: Final = ", beginning"
"""What a description ends with if the value is of a later step than the origin."""


class RisingRule(ModuleRule):
    """A rule whose origin is the one module in which a rise began; of several it may be unknown."""

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return where and when it began: of several modules that rise, none if it is not known.

        The value, and what is said of it, is that of the module that is farthest off.
        """
        judgement = context.judge(frame)
        flagged = judgement.modules.any_of(raised)
        together = np.flatnonzero(flagged | _risen(judgement))
        beginnings: dict[int, Beginning | None] = {}
        if len(together) <= MAX_COMPARED:
            for module in together.tolist():
                members = _members(module, judgement, frame)
                beginnings[module] = rise_of(frame, context, members)
        first = _first(together, beginnings, judgement)
        if first is not None and flagged[first]:
            own = np.zeros_like(raised)
            own[_members(first, judgement, frame)] = True
            found = super().origin(frame, context, raised & own)
            found = replace(found, notes=notes(frame, judgement, raised))
            return began_at(found, context, beginnings.get(first))
        found = super().origin(frame, context, raised)
        return replace(found, layer=None, detail=f"farthest off is {place(found)}")

    def subject(self, origin: Origin) -> str:
        """Return the layer, or which is farthest off where it is not known which was first."""
        if origin.layer is not None:
            return shown(origin.layer)
        return f"several modules ({origin.detail})" if origin.detail else place(origin)

    def since(self, origin: Origin) -> str:
        """Return what the description ends with."""
        return BEGINNING if any(note.startswith("began about") for note in origin.notes) else ""


def _risen(judgement: Judgement) -> BoolArray:
    """Return (modules,) those that rise as well, though maybe not enough to be told."""
    limit = np.maximum(LN_LEAST, DEVIATIONS * judgement.deviation)
    with np.errstate(invalid="ignore"):
        risen: BoolArray = (judgement.over_peak > LN_LEAST) | (judgement.rise > limit)
    return (risen & judgement.is_known)[FIRST_MODULE:]


def _members(module: int, judgement: Judgement, frame: Frame) -> IndexArray:
    return np.flatnonzero(judgement.modules.of_layer[: len(frame.present)] == module)


def _first(
    together: IndexArray, beginnings: dict[int, Beginning | None], judgement: Judgement
) -> int | None:
    """Return the module in which it began: the only one, the first, or the one that stands out."""
    if len(together) == 1:
        return int(together[0])
    known = {module: own for module, own in beginnings.items() if own is not None}
    if len(known) == len(together):
        first = min(known, key=lambda module: known[module].step)
        latest = known[first].step + known[first].error_steps
        if all(latest < own.step for module, own in known.items() if module != first):
            return first
    rises = np.nan_to_num(judgement.rise[FIRST_MODULE:][together], nan=np.inf)
    largest = int(np.argmax(rises))
    others = np.delete(rises, largest)
    if np.isfinite(rises).all() and rises[largest] > STANDS_OUT * max(0.0, float(others.max())):
        return int(together[largest])
    return None
