"""Layers that had a gradient in each step and have none any more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.alert import place
from gradwatch_server.core.alerting.attribution import ranks_of
from gradwatch_server.core.alerting.evaluation import NUM_BEFORE, Context
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import Steps
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.loss_harm import worse_with_loss
from gradwatch_server.core.alerting.rules.module import usual_norm
from gradwatch_server.core.arrays import BoolArray, IndexArray, grown
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.packing import pack, unpack
from gradwatch_wire.health import Severity

STEADY_FRAMES: Final = 32
"""A layer that was there in so many frames in a row is expected in the next."""

ACCEPTED_FRAMES: Final = 256
"""A layer that is missing this long is no longer expected."""


class MissingMemory:
    """How long each layer was there, and for how long it has been missing.

    Attributes:
        there: (layers,) frames in a row with it, up to the latest.
        missing: (layers,) frames without a layer that is expected, 0 otherwise.
        since: (layers,) the step of the first of them.
        any_missing: Whether one is.
    """

    def __init__(self) -> None:
        self.there: IndexArray = np.zeros(0, dtype=np.int64)
        self.missing: IndexArray = np.zeros(0, dtype=np.int64)
        self.since: IndexArray = np.zeros(0, dtype=np.int64)
        self.any_missing = False

    def follow(self, frame: Frame) -> None:
        """Take in a frame; one that lacks ranks or shards says nothing."""
        present = frame.present
        if len(present) > len(self.there):
            for name in ("there", "missing", "since"):
                setattr(self, name, grown(getattr(self, name), len(present), 0))
        if frame.num_partial or frame.coverage < 1.0:
            return
        if not self.any_missing and np.count_nonzero(present) == len(present):  # nearly always
            self.there += 1
            return
        expected = self.there >= STEADY_FRAMES
        went = expected & ~present
        if not (expected & present).any():
            went[:] = False  # another part of the model is trained from here on
        self.since[went] = frame.step
        goes_on = ~present & (self.missing > 0) & (self.missing < ACCEPTED_FRAMES)
        self.missing = np.where(went, 1, np.where(goes_on, self.missing + 1, 0))
        self.there = np.where(present, self.there + 1, 0)
        self._look_again()

    def _look_again(self) -> None:
        self.any_missing = bool(np.count_nonzero(self.missing))

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {name: pack(getattr(self, name)) for name in ("there", "missing", "since")}

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        for name in ("there", "missing", "since"):
            setattr(self, name, np.array(unpack(plain[name]), dtype=np.int64))
        self._look_again()


class LayerMissingRule(LayerRule):
    """A layer that had a gradient in each of 32 frames has none for `missing_steps` frames.

    Its parameter was frozen, or the loss no longer depends on it: records do not tell which, as a
    layer without a gradient is not in them at all. So the severity is `info` by default. Where all
    layers that were there go at once, another part of the model is trained from then on, and
    nothing is told. It is a warning where the mean of the loss over 16 frames has left its level as
    well (4 standard errors, see `loss`). Frames that lack a rank or a shard say nothing.

    It is over when the layer is back, or after 256 frames without it.
    """

    name = "layer_missing"
    follows = ("nonfinite", "loss")
    formula = """
        a layer that was in each of 32 frames is in none of the `missing_steps` after them; frames
        with `coverage < 1`, or in which a shard is missing, do not count.
    """
    tuning = """
        Where nothing is frozen on purpose set `severity = "warning"`. What is frozen by a schedule
        is left out by `layers = ["!encoder.*"]`. Raise `missing_steps` where a layer is not used in
        some steps in a row, as with stochastic depth.
    """
    source = """
        A heuristic, not measured. 32 frames are the history that norms need as well. The severity
        is low as layers are mostly frozen on purpose.
    """

    missing_steps: Steps = Field(3, description="Frames without a gradient that are too many.")
    severity: Severity = Field(Severity.INFO, description="Severity of its alerts.")

    def memory(self) -> MissingMemory:
        """Return a new memory."""
        return MissingMemory()

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        """Return the layers that are missing, (layers,)."""
        memory = self._memory(context)
        memory.follow(observation)
        if not memory.any_missing:
            return np.zeros(len(memory.missing), dtype=np.bool_)
        missing: BoolArray = memory.missing >= self.missing_steps
        return missing

    def severity_with(self, frame: Frame, context: Context, in_a_row: int) -> Severity:
        """Return a warning where the loss has left its level as well."""
        return worse_with_loss(self.severity, context.judge(frame))

    def seen(self, frame: Frame) -> BoolArray:
        """Return all layers, (layers,): to be absent is what it is about."""
        return np.ones(len(frame.present), dtype=np.bool_)

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return the step that first lacked a layer, and the first such layer in order."""
        memory = self._memory(context)
        indices = np.flatnonzero(raised)
        layer = int(indices[np.argmax(memory.missing[indices])])
        ranks = ranks_of(frame.parts)
        return Origin(
            step=int(memory.since[layer]),
            rank=one_rank(ranks),
            ranks=ranks,
            layer=context.names[layer],
            kind=None,
            value=math.nan,
            threshold=None,
            before=context.window.before(layer, NUM_BEFORE + self.missing_steps)[-NUM_BEFORE:],
            usual=usual_norm(layer, context),
        )

    def describe(self, origin: Origin) -> str:
        """Return what is wrong in a few words."""
        usual = f", usually of norm {origin.usual:.3g}" if origin.usual is not None else ""
        return f"{place(origin)} has no gradient any more{usual}"

    def _memory(self, context: Context) -> MissingMemory:
        memory = context.memory(self.name)
        assert isinstance(memory, MissingMemory)  # noqa: S101 - for the type checker
        return memory
