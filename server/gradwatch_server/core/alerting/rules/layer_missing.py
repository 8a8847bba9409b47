"""Layers that had a gradient in each step and have none any more."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import ranks_of
from gradwatch_server.core.alerting.evaluation import (
    NUM_BEFORE,
    Context,
    Evaluation,
    RuleVerdict,
    free_group,
)
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import Sign, Steps
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.module import usual_norm
from gradwatch_server.core.arrays import BoolArray, IndexArray, grown
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import Severity

STEADY_FRAMES: Final = 32
"""A layer that was there in so many frames in a row is expected in the next."""

ACCEPTED_FRAMES: Final = 256
"""A layer that is missing this long is no longer expected."""

UNUSED: Final = "though it requires one"
FROZEN: Final = "requires_grad is off"
FROZEN_GROUP: Final = "frozen"
"""Group of its alerts about frozen layers."""

_COUNTS: Final = ("missing", "since", "frozen")
_NUMBER: Final = re.compile(r"\d+")


@dataclass(slots=True)
class MissingMemory:
    """Frames without each layer that is expected, and since when it has been missing.

    Attributes:
        missing: (layers,) frames without a layer that is expected, 0 otherwise.
        since: (layers,) the step of the first of them.
        frozen: (layers,) frames since a layer that was expected is frozen, 0 otherwise.
        unused: (layers,) whether the latest frame says that it requires a gradient and got none.
        occasional: Kinds of layers of which one was unused and came back; see `kind_of`.
    """

    missing: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    since: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    frozen: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    unused: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    occasional: set[str] = field(default_factory=set)
    any_missing: bool = False
    any_frozen: bool = False

    def update(self, frame: Frame, names: Sequence[str], in_a_row: IndexArray) -> None:
        """Take in a frame; one that lacks ranks or shards says nothing.

        Args:
            in_a_row: (layers,) frames in a row with each layer before this one.
        """
        present = frame.present
        if len(present) > len(self.missing):
            for name in _COUNTS:
                setattr(self, name, grown(getattr(self, name), len(present), 0))
            self.unused = np.pad(self.unused, (0, len(present) - len(self.unused)))
        if frame.num_partial or frame.coverage < 1.0:
            return
        frozen, unused = frame.idle_layers()
        back = np.flatnonzero(self.unused & present).tolist()
        self.occasional |= {kind_of(names[i]) for i in back}
        expected = in_a_row >= STEADY_FRAMES
        went = expected & ~present
        if not (expected & present).any():
            went[:] = False  # another part of the model is trained from here on
        self.since[went] = frame.step
        self.missing = _counted(self.missing, went & ~frozen, ~present & ~frozen)
        self.frozen = _counted(self.frozen, went & frozen, ~present & frozen)
        self.unused = unused
        self.any_missing = bool(np.count_nonzero(self.missing))
        self.any_frozen = bool(np.count_nonzero(self.frozen))

    def is_cut_off(self, layer: int, names: Sequence[str]) -> bool:
        """Tell whether a missing layer is one that every step is known to use."""
        return bool(self.unused[layer]) and kind_of(names[layer]) not in self.occasional


def _counted(frames: IndexArray, begins: BoolArray, goes_on: BoolArray) -> IndexArray:
    """Return (layers,) frames so far: 1 where it begins, one more where it goes on, else 0."""
    goes_on = goes_on & (frames > 0) & (frames < ACCEPTED_FRAMES)
    counted: IndexArray = np.where(begins, 1, np.where(goes_on, frames + 1, 0))
    return counted


def kind_of(name: str) -> str:
    """Return what the name of a layer has in common with those that differ in numbers only."""
    return _NUMBER.sub("#", name)


class LayerMissingRule(LayerRule):
    """A layer that had a gradient in each of 32 frames has none for `missing_steps` frames.

    The client says whether the parameter of such a layer was frozen (`requires_grad` off) or still
    requires a gradient that no backward pass brings. Frozen is `info`, in a group `frozen`, and
    ends other alerts of these layers (`resolved_by` is `frozen`). A layer that requires a gradient
    and has none is detached from the loss: `severity`. It is `uncertain_severity` where an older
    client says neither, where the layer left the model or its optimizer, and where a layer of the
    same name but for its numbers (`experts.3.w`, `experts.7.w`) was unused before and came back, as
    experts and blocks under stochastic depth do; a warning there too if the loss is beyond its
    record.

    Where all layers go at once, another part of the model is trained, and nothing is told. Frames
    that lack a rank or a shard say nothing. A layer that is frozen or detached under
    `zero_grad(set_to_none=False)` keeps a gradient of zeros: the matter of the rule `dead_layer`.

    It is over when the layer is back, or after 256 frames.
    """

    name = "layer_missing"
    signs = Sign.INCOMPLETE
    memory: ClassVar[type | None] = MissingMemory
    follows = ("nonfinite", "loss")
    formula = """
        a layer that was in each of 32 frames is in none of the `missing_steps` after them; frames
        with `coverage < 1`, or in which a shard is missing, do not count.
    """
    tuning = """
        A part that the loss leaves out from some step on, as an auxiliary head, is left out by
        `layers = ["!auxiliary.*"]`. Raise `missing_steps` where a layer is not used in some steps
        in a row. Where older clients train and nothing is frozen on purpose set
        `uncertain_severity = "warning"`.
    """
    source = """
        A heuristic. 32 frames are the history that norms need as well. Of the labelled runs
        (`scripts/bench alerts`) each in which a module is detached has the warning at the third
        step, and none has a warning of this rule in which one is frozen, or that is healthy.
    """

    missing_steps: Steps = Field(3, description="Frames without a gradient that are too many.")
    uncertain_severity: Severity = Field(
        Severity.INFO, description="Severity instead where it may be on purpose."
    )

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return the layers that are missing, (layers,)."""
        memory = context.memory(self.name, MissingMemory)
        in_a_row = context.judge.state.presence.frames_in_a_row()
        memory.update(observation, context.names, in_a_row)
        if not memory.any_missing and not memory.any_frozen:
            return None
        gone: BoolArray = np.maximum(memory.missing, memory.frozen) >= self.missing_steps
        return gone

    def seen(self, frame: Frame) -> BoolArray:
        """Return all layers that are not frozen, (layers,): to be absent is what it is about."""
        frozen, _ = frame.idle_layers()
        return ~frozen

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        frozen = raised & (context.memory(self.name, MissingMemory).frozen > 0)
        for each in super().evaluate(observation, raised & ~frozen, context):
            severity = partial(self._severity_of, observation, context, each.verdict.raised)
            yield replace(each, severity=severity)
        yield Evaluation(
            group=free_group(FROZEN_GROUP, "layers", context.groups),
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=RuleVerdict(frozen, frozen, np.ones_like(frozen)),
            names=context.names,
            origin=partial(self.origin, observation, context),
            severity=lambda _: Severity.INFO,
        )

    def _severity_of(
        self, frame: Frame, context: Context, raised: BoolArray, in_a_row: int
    ) -> Severity:
        memory = context.memory(self.name, MissingMemory)
        cut_off = (memory.is_cut_off(i, context.names) for i in np.flatnonzero(raised).tolist())
        if any(cut_off):
            return self.severity
        if self.uncertain_severity is Severity.INFO and context.findings.is_loss_felt:
            return Severity.WARNING
        return self.uncertain_severity

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return the step that first lacked a layer, and the first such layer in order."""
        memory = context.memory(self.name, MissingMemory)
        indices = np.flatnonzero(raised)
        cut_off = [memory.is_cut_off(i, context.names) for i in indices.tolist()]
        gone = np.maximum(memory.missing, memory.frozen)
        layer = int(indices[np.lexsort((-gone[indices], ~np.array(cut_off)))[0]])
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
            detail=FROZEN if memory.frozen[layer] else UNUSED if memory.unused[layer] else "",
        )
