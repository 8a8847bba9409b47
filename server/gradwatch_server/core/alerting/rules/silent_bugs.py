"""Bugs that look healthy: the loss falls or stays, and yet nothing is learnt as it was meant."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import ranks_of
from gradwatch_server.core.alerting.evaluation import Context, Evaluation, RuleVerdict
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import FOR_STEPS, Rule, Sign, Steps
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.window import Window
from gradwatch_wire.columns import L2, UNCHANGED
from gradwatch_wire.health import Severity
from gradwatch_wire.names import Label, Reduction, Scalar

MAX_GAP: Final = 2
"""Frames from one with the sign to the next that belong together."""

WARNING_STEPS: Final = "Steps after the first one from which on it is a warning; until then info."


@dataclass(slots=True)
class SignMemory:
    """Frames in a row that have the sign of a rule, but for a single one between them.

    Attributes:
        step: Step of the first of them, -1 without any.
        count: Frames of the attempt before the newest of them.
        steps_before: Steps that the sign had lasted in the attempt that this one resumes.
    """

    step: int = -1
    count: int = -1
    steps_before: int = 0

    def update(self, step: int, count: int) -> None:
        if self.step >= 0 and 0 <= count - self.count <= MAX_GAP:
            self.count = count
            return
        if self.step >= 0 or count >= MAX_GAP:  # the sign was away
            self.steps_before = 0
        self.step, self.count = step, count

    def num_steps(self, step: int) -> int:
        """Return the steps that the sign has lasted by a step, 0 if it is not there."""
        return self.steps_before + step - self.step if self.step >= 0 else 0

    def resumed(self, step: int, num_frames: int) -> Self:
        """Return that of an attempt which goes on after this one's last step and frame."""
        is_there = 0 < num_frames - self.count <= MAX_GAP
        return type(self)(steps_before=self.num_steps(step) if is_there else 0)


class SilentBugRule(Rule):
    """Base of these rules: a sign is there or not, and may be meant so."""

    takes = (Frame,)
    signs = Sign.SILENT_BUG
    memory: ClassVar[type | None] = SignMemory

    severity: Severity = Field(Severity.WARNING, description="Severity once it has lasted.")
    warning_steps: Steps = Field(20, description=WARNING_STEPS)

    @abstractmethod
    def has_sign(self, frame: Frame, context: Context) -> bool:
        """Tell whether a frame has the sign."""

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return that the frame has the sign, (1,); None if it does not."""
        if not is_taken(observation) or not self.has_sign(observation, context):
            return None
        context.memory(self.name, SignMemory).update(observation.step, context.window.count)
        return np.array([True])

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        is_raised = bool(raised.any())
        memory = context.memory(self.name, SignMemory)
        has_lasted = memory.num_steps(observation.step) >= self.warning_steps
        matters = has_lasted and self.name not in context.expected
        ranks = ranks_of(observation.parts)
        origin = Origin(memory.step, one_rank(ranks), ranks, None, None, 0.0, None)
        yield Evaluation(
            group=self.name,
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=RuleVerdict.of_run(
                raised=is_raised, held=is_raised, seen=is_taken(observation)
            ),
            names=(),
            origin=lambda _: origin,
            severity=lambda _: self.severity if matters else Severity.INFO,
        )


class NotLearningRule(SilentBugRule):
    """The learning rate is 0, so that no step changes a weight.

    The rate is that of the first parameter group, or the largest of all groups where that is 0. A
    warm-up that begins at 0 is over before the rule speaks. `origin.step` is the first of the steps
    that were measured. A job that is resumed where this lasted goes on counting.
    """

    name = "not_learning"
    spoils_steps = False
    formula = "the learning rate is 0 in `for_steps` frames in a row."
    tuning = 'Where a rate of 0 is meant, as in an evaluation that steps: `runs = ["!eval-*"]`.'
    source = """
        The gradient and the loss of such a run look healthy. TrainCheck (OSDI 2025) found 18 of 20
        real silent bugs by facts as this one, and 2 of them by the size of loss and norms.
    """

    for_steps: Steps = Field(8, description=FOR_STEPS)
    warning_steps: Steps = Field(200, description=WARNING_STEPS)

    def has_sign(self, frame: Frame, context: Context) -> bool:
        return frame.lr == 0.0


class RepeatedGradientRule(SilentBugRule):
    """Every norm of a step is that of the step before, bit for bit.

    The gradients are old ones, as where `backward()` is not called, or the batch is the same again
    and the weights do not move. (A loss that is linear in the weights, as `model(x).sum()` of one
    linear layer, has such a gradient too.) Frames with the same layers and finite gradients that
    are not all zero are compared. `origin.step` is the second of the equal ones.
    """

    name = "repeated_gradient"
    follows = ("not_learning",)
    formula = "`l2` of every layer equals that of the frame before in `for_steps` frames in a row."
    tuning = 'Turn it off for benchmarks that train on one batch: `runs = ["!bench-*"]`.'
    source = "A comparison of equal numbers: there is no threshold to choose."

    for_steps: Steps = Field(4, description=FOR_STEPS)

    def has_sign(self, frame: Frame, context: Context) -> bool:
        """Tell whether all norms are as before."""
        window = context.window
        is_same = frame.is_finite and window.ends_with(frame.total_norm)
        return is_same and np.array_equal(window.newest_norms, frame.column(L2), equal_nan=True)


class NotZeroedRule(SilentBugRule):
    """Gradients are not emptied between two steps: each step takes those of all before once more.

    As a backward pass begins, the client looks at the gradients of up to three parameters: they are
    those that the step before has used, and not zero. Passes of one step, as micro-batches, do not
    count. On CUDA, in float64 and of parameters above 16,384 elements it is not known where
    gradients are clipped; of FSDP2's it never is.
    """

    name = "not_zeroed"
    formula = "records have `carried` = true, in `for_steps` frames in a row."
    tuning = 'Where gradients are carried over on purpose: `runs = ["!averaged-*"]`.'
    source = """
        The classic of forgotten lines, which trains and learns little. Norms that grow from the
        first step on show it in some trainings only: that it happens is a fact of each step.
    """

    for_steps: Steps = Field(4, description=FOR_STEPS)

    def has_sign(self, frame: Frame, context: Context) -> bool:
        """Tell whether a rank has carried its gradients over."""
        return _is_carried(frame)


class SameBatchRule(SilentBugRule):
    """All ranks have the same batch: a job of many does the work of one.

    Each rank tells the sum of a few small gradients of its own before the reduction
    (`local_probe`). If these are equal on all ranks, bit for bit, in many steps in a row, and the
    losses too, so are the batches. Ranks that hold shards are not compared.
    """

    name = "same_batch"
    spoils_steps = False
    formula = """
        with `reduction` = `mean`, `local_probe` is equal on all ranks, and so is `loss` where it
        is given, in `for_steps` frames in a row.
    """
    tuning = 'Where one batch on all ranks is meant, turn it off: `runs = ["!overfit-*"]`.'
    source = """
        Reported as "N times the compute for an unchanged effective batch, silently": a sampler that
        is not distributed, or one seed on all ranks. No norm and no loss looks unusual.
    """

    for_steps: Steps = Field(8, description=FOR_STEPS)

    def has_sign(self, frame: Frame, context: Context) -> bool:
        """Tell whether the probes of all ranks are equal, and their losses."""
        if not _has_equal_probes(frame) or frame.coverage < 1.0 or not frame.is_finite:
            return False
        first = frame.parts[0]
        if first.labels.get(Label.REDUCTION) != Reduction.MEAN or first.layout.is_sharded.any():
            return False
        probe, loss = first.scalars[Scalar.LOCAL_PROBE], first.scalars.get(Scalar.LOSS)
        return all(
            part.scalars.get(Scalar.LOCAL_PROBE) == probe and part.scalars.get(Scalar.LOSS) == loss
            for part in frame.parts
        )


def may_have_silent_bug(frame: Frame, window: Window) -> bool:
    """Tell whether a frame may have one of the signs: looked at in every frame, so be quick."""
    return (
        frame.lr == 0.0
        or UNCHANGED in frame.measured
        or _is_carried(frame)
        or window.ends_with(frame.total_norm)
        or _has_equal_probes(frame)
    )


def _is_carried(frame: Frame) -> bool:
    for part in frame.parts:  # noqa: SIM110 - `any` would be a call for each rank of each frame
        if Label.CARRIED in part.labels:
            return True
    return False


def _has_equal_probes(frame: Frame) -> bool:
    if len(frame.parts) < 2:
        return False
    one, other = (part.scalars.get(Scalar.LOCAL_PROBE) for part in frame.parts[:2])
    return bool(one) and one == other


def is_taken(frame: Frame) -> bool:
    """Tell whether the optimizer took the step, on all ranks."""
    return all(part.labels.get(Label.TAKEN) is not False for part in frame.parts)
