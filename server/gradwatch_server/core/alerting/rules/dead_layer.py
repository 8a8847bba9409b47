"""Modules whose gradient is exactly zero, having been alive."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import first_computed, may_come_from_loss
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Sign, Steps
from gradwatch_server.core.alerting.rules.module import ModuleRule, began_before, layers_of
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.judge.activity import LEAST_RUN
from gradwatch_server.core.judge.findings import Findings
from gradwatch_wire.health import Severity

ALL_FRAMES: Final = 8
"""A whole model that is zero for so long is critical."""


class DeadLayerRule(ModuleRule):
    """A module whose gradient is exactly zero in all its layers, having been alive.

    A module is the layers that share a name up to the last dot. Three zero frames in a row are told
    after 32 frames without a zero, or after 128 with at most one zero in 100. A module that is zero
    now and then, as an idle expert or the table of a rare field, is judged by its own past: with a
    share p of zero frames it is told, as `info`, after ln 10⁻⁶ / ln p of them in a row. A module
    that never was alive is the matter of the rule `vanishing`.

    The origin is the module that is dead longest, at its first zero; of several that died at once
    the last in forward order. Where the order is not known, or the model's last layer is among them
    (it may have been the loss), `layer` is null.

    It is critical where all modules have been zero for 8 frames, and over at the first gradient
    that is not zero.
    """

    name = "dead_layer"
    signs = Sign.ZERO
    recurs = True
    follows = ("nonfinite", "exploding", "loss_scaler", "loss")
    sign: ClassVar[int] = -1
    formula = """
        every layer of a module has `l2 = 0`, in 3 frames in a row after 32 frames above zero
        without a zero one, or in n in a row with `p^n <= 1e-6`, where p is (zero frames before + 1)
        / (all frames before + 2).
    """
    tuning = """
        Experts and tables of rare fields need nothing: their own past is what they are judged by.
        A module that is left out for some steps in a row on purpose is left out by
        `layers = ["!decoder.extra.*"]`.
    """
    source = """
        A run of zeros as rare as one in a million by the share of zeros before is no chance.
        Experts are idle in bunches, so that the share p still gave 30 false alarms in 67,200 steps:
        that is why it is `info`.
    """

    clear_steps: Steps = Field(
        3, description="Consecutive frames that must be good before a firing alert is resolved."
    )

    def raised_layers(self, frame: Frame, findings: Findings, context: Context) -> BoolArray | None:
        """Return (layers,) those of modules that are dead, None if none is."""
        zeros = context.judge.state.zeros
        if not zeros.any_run:  # nearly always
            return None
        return layers_of(context, zeros.dead() & (findings.norms == 0.0), frame)

    def held_modules(self, findings: Findings) -> BoolArray:
        """Return (modules,) none: a dead module is over at its first gradient."""
        return np.zeros(len(findings.norms), dtype=np.bool_)

    def severity_in(
        self, frame: Frame, context: Context, raised: BoolArray, in_a_row: int
    ) -> Severity:
        """Return info for modules that were zero before, critical where all are dead."""
        judge = context.judge
        if not (judge.modules.any_of(raised) & judge.state.zeros.paged()).any():
            return Severity.INFO
        is_all = not (context.findings.norms > 0.0).any()
        return Severity.CRITICAL if is_all and in_a_row > ALL_FRAMES - LEAST_RUN else self.severity

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return where the zeros began: in the module that is dead longest, at its first one.

        Of several that died at once it is the last in forward order, as zeros flow back from there;
        of a whole model nobody knows whether they came from the loss.
        """
        modules = context.judge.modules
        run = np.where(modules.any_of(raised), context.judge.state.zeros.run, 0)
        longest = run == run.max()
        together = raised & modules.spread(longest, len(frame.present))
        first = first_computed(frame, together)
        is_one = np.count_nonzero(longest) == 1
        known = is_one or (first is not None and not may_come_from_loss(frame, together))
        if not is_one and first is not None:
            longest = np.arange(len(run)) == modules.of_layer[first]
            together &= modules.spread(longest, len(frame.present))
        origin = super().origin(frame, context, together)
        if not known:
            origin = replace(origin, layer=None, farthest=None)
        return began_before(origin, context, int(run.max()) - 1)

    def farthest(self, context: Context, flagged: BoolArray) -> int:
        """Return the first of them: zero has no logarithm."""
        return int(np.flatnonzero(flagged)[0])
