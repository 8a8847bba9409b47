"""Modules whose gradient is exactly zero, having been alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import first_computed, may_come_from_loss
from gradwatch_server.core.alerting.baselines.judgement import Judgement
from gradwatch_server.core.alerting.baselines.logarithm import natural_log
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Steps
from gradwatch_server.core.alerting.rules.module import ModuleRule
from gradwatch_server.core.alerting.rules.slow import began_before
from gradwatch_server.core.alerting.wording import place
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, grown
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.packing import pack, unpack
from gradwatch_wire.health import Severity

LN_CHANCE: Final = -13.815510557964274
"""ln 1e-6: a run of zeros that is as rare as that, by how often there were zeros before."""

ALL_FRAMES: Final = 8
"""A whole model that is zero for so long is critical."""

_COUNTS: Final = ("alive", "run", "frames", "zeros")


class DeadMemory:
    """How often each module was exactly zero.

    Attributes:
        alive: (modules,) frames since the last zero one.
        run: (modules,) zero frames in a row, up to the latest.
        frames: (modules,) frames with it, those of the run left out.
        zeros: (modules,) zero frames among them.
        steady: (modules,) whether it was never zero for long before the run.
    """

    def __init__(self) -> None:
        self.alive: IndexArray = np.zeros(0, dtype=np.int64)
        self.run: IndexArray = np.zeros(0, dtype=np.int64)
        self.frames: IndexArray = np.zeros(0, dtype=np.int64)
        self.zeros: IndexArray = np.zeros(0, dtype=np.int64)
        self.steady: BoolArray = np.zeros(0, dtype=np.bool_)
        self._any_run = False

    def follow(self, norms: FloatArray, alive_frames: int) -> bool:
        """Take in a frame's norms, (modules,); return whether any module is zero."""
        if len(norms) > len(self.steady):
            for name in _COUNTS:
                setattr(self, name, grown(getattr(self, name), len(norms), 0))
            self.steady = grown(self.steady, len(norms), fill=False)
        if not self._any_run and _are_above_zero(norms):  # nearly always
            self.alive += 1
            self.frames += 1
            return False
        alive, zero = norms > 0.0, norms == 0.0
        if not np.count_nonzero(zero) and not self._any_run:
            self.alive += alive
            self.frames += alive
            return False
        began, ended = zero & (self.run == 0), alive & (self.run > 0)
        # An expert that is busy for once is not steady for that.
        is_long = self.alive >= np.maximum(alive_frames, self.zeros)
        self.steady = np.where(began, is_long, self.steady)
        self.frames += alive + np.where(ended, self.run, 0)
        self.zeros += np.where(ended, self.run, 0)
        self.alive = np.where(zero, 0, self.alive + alive)
        self.run = np.where(zero, self.run + 1, np.where(alive, 0, self.run))
        self._any_run = bool(np.count_nonzero(self.run))
        return bool(np.count_nonzero(zero))

    def enough(self) -> IndexArray:
        """Return (modules,) the zeros in a row that are too many by chance, by its own past.

        With the share p of zeros before, n in a row have the chance pⁿ; p counts one zero and one
        other frame more than there were, so that it is known of a short history, too.
        """
        share = (self.zeros + 1.0) / (self.frames + 2.0)
        return np.ceil(LN_CHANCE / natural_log(share)).astype(np.int64)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {name: pack(getattr(self, name)) for name in (*_COUNTS, "steady")}

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        for name in _COUNTS:
            setattr(self, name, np.array(unpack(plain[name]), dtype=np.int64))
        self.steady = np.array(unpack(plain["steady"]), dtype=np.bool_)
        self._any_run = bool(np.count_nonzero(self.run))


def _are_above_zero(norms: FloatArray) -> bool:
    """Tell whether all are; of a NaN `argmin` says that it is the least."""
    return not norms.size or bool(norms.item(norms.argmin()) > 0.0)


class DeadLayerRule(ModuleRule):
    """A module whose gradient is exactly zero in all its layers, having been alive.

    A module is the layers that share a name up to the last dot. `dead_steps` zero frames in a row
    are told after `alive_steps` without a zero, and as many as it was ever zero in. A module that
    is zero now and then, as an idle expert is or the table of a rare field, is judged by its own
    past: with a share p of zero frames it is told, as `info`, after ln 10⁻⁶ / ln p of them in a
    row. One that never was alive is a matter of the rule `vanishing`.

    Its origin is the module that is dead longest, at its first zero. Of several that died at once
    it is the last in forward order, as zeros flow back from there; where the order is not known, or
    the model's last layer is among them (it may have been the loss), `layer` is null.

    It is critical where all modules have been zero for 8 frames. It is over at the first gradient
    that is not zero.
    """

    name = "dead_layer"
    recurs = True
    follows = ("nonfinite", "exploding", "spike", "skipped_steps", "loss_scale", "loss")
    sign = -1
    formula = """
        every layer of a module has `l2 = 0`, in `dead_steps` frames in a row after `alive_steps`
        frames without such a one, and after at least as many as there ever were such ones; else in
        n in a row with `p^n <= 1e-6`, and `n >= dead_steps`, where p is (zero frames before + 1) /
        (all frames before + 2).
    """
    tuning = """
        Experts and tables of rare fields need nothing: their own past is what they are judged by.
        Raise `dead_steps` where a module that is always used is left out for some steps in a row on
        purpose, or leave it out with `layers = ["!decoder.extra.*"]`. Lower `alive_steps` for runs
        of few steps.
    """
    source = """
        Measured on healthy steps of 14 trainings: zero three times in a row, having been alive, is
        1,683 false alarms in 67,200 of them, all in a mixture of experts and in a model of clicks;
        after 128 steps without a zero it is none. Experts are idle in bunches, so that the share p
        still gave 30: that is why it is `info`.
    """

    dead_steps: Steps = Field(3, description="Zero frames in a row that are too many.")
    alive_steps: Steps = Field(128, description="Frames without a zero one after which that holds.")

    def memory(self) -> DeadMemory:
        """Return a new memory."""
        return DeadMemory()

    def raised_modules(self, frame: Frame, judgement: Judgement, context: Context) -> BoolArray:
        """Return the modules that are dead, (modules,)."""
        memory = self._memory(context)
        if not memory.follow(judgement.norms, self.alive_steps):
            return np.zeros(len(judgement.norms), dtype=np.bool_)
        was_alive = memory.frames > memory.zeros
        by_chance = memory.run >= np.maximum(memory.enough(), self.dead_steps)
        dead = (memory.steady & (memory.run >= self.dead_steps)) | (was_alive & by_chance)
        now: BoolArray = dead & (judgement.norms == 0.0)
        return now

    def severity_in(
        self, frame: Frame, context: Context, raised: BoolArray, in_a_row: int
    ) -> Severity:
        """Return info for modules that were zero before, critical where all are dead."""
        judgement, memory = context.judge(frame), self._memory(context)
        steady = judgement.modules.any_of(raised) & memory.steady
        if not steady.any():
            return Severity.INFO
        is_all = not (judgement.norms > 0.0).any()
        return Severity.CRITICAL if is_all and in_a_row > ALL_FRAMES - 3 else self.severity

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return where the zeros began: in the module that is dead longest, at its first one.

        Of several that died at once it is the last in forward order, as zeros flow back from there;
        of a whole model nobody knows whether they came from the loss.
        """
        judgement, memory = context.judge(frame), self._memory(context)
        run = np.where(judgement.modules.any_of(raised), memory.run, 0)
        longest = run == run.max()
        together = raised & judgement.modules.spread(longest, len(frame.present))
        first = first_computed(frame, together)
        is_one = np.count_nonzero(longest) == 1
        known = is_one or (first is not None and not may_come_from_loss(frame, together))
        if not is_one and first is not None:
            longest = np.arange(len(run)) == judgement.modules.of_layer[first]
            together &= judgement.modules.spread(longest, len(frame.present))
        found = super().origin(frame, context, together)
        if not known:
            found = replace(found, layer=None)
        return began_before(found, context, int(run.max()) - 1)

    def worst_module(self, judgement: Judgement, flagged: BoolArray) -> int:
        """Return the first of them: zero has no logarithm."""
        return int(np.flatnonzero(flagged)[0])

    def key(self, group: str, frame: Frame, context: Context, raised: BoolArray) -> str:
        """Return what ids are made of: the origin is an earlier step."""
        return f"{group} {frame.step}"

    def describe(self, origin: Origin) -> str:
        """Return what is wrong in a few words."""
        usual = f", usually {origin.usual:.3g}" if origin.usual else ""
        return f"gradient of {place(origin)} is exactly zero{usual}"

    def _memory(self, context: Context) -> DeadMemory:
        memory = context.memory(self.name)
        assert isinstance(memory, DeadMemory)  # noqa: S101 - for the type checker
        return memory
