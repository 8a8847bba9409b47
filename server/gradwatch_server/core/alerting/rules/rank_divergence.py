"""Ranks that disagree on what is equal on all: averaged gradients, and replicated weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.evaluation import (
    NUM_BEFORE,
    Context,
    Evaluation,
    RuleVerdict,
    free_group,
)
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import CLEAR_STEPS, FOR_STEPS, Limit, Sign, Steps
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Disagreement, Frame
from gradwatch_server.core.frames.replicas import (
    moved_ranks,
    odd_ranks,
    unreduced_ranks,
    weight_differences,
    weight_norms,
)
from gradwatch_wire.health import Severity

WEIGHTS: Final = "weights"
"""The group of its alerts about weights, whatever the groups of layers are."""

UNKNOWN: Final = "odd one unknown"


@dataclass(slots=True)
class WeightsMemory:
    """Weights of replicas when they were last equal.

    Attributes:
        norms: (2, layers) L2 norm and largest magnitude, NaN of a layer never seen equal.
        steps: (layers,) the step, -1 of a layer never seen equal.
    """

    norms: FloatArray = field(default_factory=lambda: np.zeros((2, 0)))
    steps: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def update(self, frame: Frame, disagreement: Disagreement) -> None:
        more = len(frame.present) - len(self.steps)
        if more > 0:
            self.norms = np.pad(self.norms, ((0, 0), (0, more)), constant_values=np.nan)
            self.steps = np.append(self.steps, np.full(more, -1, dtype=np.int64))
        equal = disagreement.weights_seen & ~disagreement.weights
        norms = weight_norms(frame.parts, equal)
        self.norms[:, : len(equal)] = np.where(equal, norms, self.norms[:, : len(equal)])
        self.steps[: len(equal)] = np.where(equal, frame.step, self.steps[: len(equal)])


class RankDivergenceRule(LayerRule):
    """Ranks disagree on a gradient that was averaged over them, or on replicated weights.

    Ranks that hold the same are compared: all of a layer (DDP), or the same shard of it (HSDP).

    **Gradients** need `reduction` = `mean` and one point of a step that was taken. An all-reduce
    gives all ranks the same bits, so `linf` and the counts must be equal, `l2` and `l1` within
    `tolerance`, or `mixed_tolerance` where ranks compute them by different paths. Two frames in a
    row are a warning (a read may race with a write), the third is critical. It finds a reduction
    that is broken or missing.

    **Weights** have a digest with `attach(weights_every=...)`. A weight corrupted on one rank
    leaves the averaged gradients equal, so only this finds it. One digest that differs is critical
    at once; its alert has the group `weights`, and is over with the next equal digest. Leave out
    parameters that DDP ignores by `exclude=`.

    `origin.step` is the first frame, or the first digest, in which ranks differed;
    `origin.last_good_step` the last equal digest. `origin.rank` is the one that differs from most
    others, of three ranks or more. Without a majority it is the rank that has its own gradient
    after the reduction (`attach(local=True)`), or whose weights moved 10 times as far as the
    others' since they were equal; else null, and `notes` says "odd one unknown". `origin.value` is
    the relative difference, Inf where only some are finite; of weights that of their norms or
    largest magnitudes, 0 where only the bits differ.
    """

    name = "rank_divergence"
    signs = Sign.REPLICAS
    memory: ClassVar[type | None] = WeightsMemory
    follows = ("nonfinite", "rank_divergence")
    formula = """
        of gradients: `linf`, `zeros`, `nans` or `infs` are not equal on two ranks, or `l2` or `l1`
        differ by `1 - low / high > tolerance` (`mixed_tolerance` where ranks measure by different
        paths); of weights: a digest is not equal. Gradients are critical from `critical_steps`
        frames in a row on.
    """
    tuning = """
        Where ranks differ by design, as the norms' weights do under tensor parallelism before they
        are summed, leave these out: `layers = ["!*norm*"]`. Raise `tolerance` where ranks have
        devices of different models. What DDP ignores is left out by `exclude=` of `attach`.
    """
    source = """
        Reduced gradients were equal bit for bit on 3 and 4 ranks, in float32 and bfloat16; NCCL
        hands on a sum that is made once. The largest magnitude and the counts do not depend on the
        order of addition, so they are compared exactly. After one weight was changed on one rank
        the reduced gradients stayed equal on all: hence the digests.
    """

    for_steps: Steps = Field(2, description=FOR_STEPS + " One is enough of weights.")
    clear_steps: Steps = Field(8, description=CLEAR_STEPS + " One is enough of weights.")
    critical_steps: Steps = Field(
        3, description="Frames in a row with unequal gradients from which on it is critical."
    )
    tolerance: Limit = Field(
        1e-6, description="Relative difference that `l2` and `l1` may have between ranks."
    )
    mixed_tolerance: Limit = Field(
        5e-5, description="The same where ranks compute them by different paths."
    )

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return the layers that differ, (layers,)."""
        disagreement = observation.disagreement
        if disagreement is None:
            return None
        if np.count_nonzero(disagreement.weights_seen):
            context.memory(self.name, WeightsMemory).update(observation, disagreement)
        return self._gradients(disagreement) | disagreement.weights

    def seen(self, frame: Frame) -> BoolArray:
        """Return the layers whose gradients could be compared, (layers,)."""
        disagreement = frame.disagreement
        return (
            np.zeros(len(frame.present), dtype=np.bool_)
            if disagreement is None
            else disagreement.seen
        )

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield an evaluation of the gradients of each group of layers, and one of the weights."""
        disagreement = observation.disagreement
        if disagreement is None:
            return
        gradients = raised & self._gradients(disagreement)
        yield from super().evaluate(observation, gradients, context)
        if disagreement.weights_seen.any():
            yield self._weights(observation, raised & disagreement.weights, context)

    def _weights(self, frame: Frame, differ: BoolArray, context: Context) -> Evaluation:
        assert frame.disagreement is not None  # noqa: S101 - for the type checker
        return Evaluation(
            group=free_group(WEIGHTS, "of replicas", context.groups),
            step=frame.step,
            received_ns=frame.received_ns,
            verdict=RuleVerdict(differ, differ, frame.disagreement.weights_seen),
            names=context.names,
            origin=partial(self._origin, frame, context, weights=True),
            severity=lambda _: Severity.CRITICAL,
            for_steps=1,
            clear_steps=1,
        )

    def _gradients(self, disagreement: Disagreement) -> BoolArray:
        tolerance = self.tolerance if disagreement.is_uniform else self.mixed_tolerance
        differ: BoolArray = (disagreement.exact > 0.0) | (disagreement.sums > tolerance)
        return differ

    def severity_of(self, frame: Frame, in_a_row: int) -> Severity:
        """Return critical where it lasts."""
        return Severity.CRITICAL if in_a_row >= self.critical_steps else self.severity

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return the layer whose gradient differs most, and the rank that is alone with it."""
        return self._origin(frame, context, raised, weights=False)

    def _origin(
        self, frame: Frame, context: Context, raised: BoolArray, *, weights: bool
    ) -> Origin:
        differences = weight_differences(frame.parts, len(raised)) if weights else _worst(frame)
        values = np.nan_to_num(differences, nan=0.0, posinf=np.inf)
        layers = np.flatnonzero(raised)
        layer = int(layers[np.argmax(values[layers])])
        odd, compared = odd_ranks(frame.parts, layer, weights=weights)
        memory = context.memory(self.name, WeightsMemory)
        if not odd and weights:
            odd = moved_ranks(frame.parts, layer, memory.norms[:, layer])
        elif not odd:
            odd = unreduced_ranks(frame.parts, layer)
        last_good = int(memory.steps[layer]) if weights else -1
        what = WEIGHTS if weights else "gradients"
        notes = [f"{what} of {len(layers)} of {len(raised)} layers differ"]
        if not odd:
            notes.append(UNKNOWN)
        if last_good >= 0:
            notes.append(f"equal at step {last_good}")
        return Origin(
            step=frame.step,
            rank=one_rank(odd),
            ranks=odd or compared,
            layer=context.names[layer],
            kind=WEIGHTS if weights else None,
            value=float(values[layer]),
            threshold=None,
            before=() if weights else context.window.before(layer, NUM_BEFORE),
            notes=tuple(notes),
            last_good_step=last_good if last_good >= 0 else None,
        )


def _worst(frame: Frame) -> FloatArray:
    """Return (layers,) the relative differences of the gradients, NaN where there are none."""
    assert frame.disagreement is not None  # noqa: S101 - for the type checker
    worst: FloatArray = np.fmax(frame.disagreement.exact, frame.disagreement.sums)
    return worst
