"""Records that are lost for good."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Final

from pydantic import Field

from gradwatch_server.core.alerting.evaluation import Context, Evaluation, RuleVerdict
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Rule, Sign, Steps
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.losses import DeclaredLoss

RECORDS: Final = "records"
"""The group of its alerts."""


class RecordsLostRule(Rule):
    """Records that a rank can no longer supply: full buffers, or a collection that was dropped.

    Its alert has the group `records` and no layers. `origin.rank` is the rank that lost the first
    of them, `origin.step` the step after its last stored one, `origin.value` the number lost so
    far, of all `origin.ranks`. Its id is made of the rank and the first lost number.
    """

    name = "records_lost"
    signs = Sign.LOST
    takes = (DeclaredLoss, Frame)
    spoils_steps = False
    formula = "a client says that it can no longer supply a record."
    tuning = """
        Give the client more memory (`buffer_bytes`) or a disk (`spill`) rather than turning it off:
        what is lost was not judged by any rule.
    """
    source = "gradwatch's own promise, that nothing is lost without being counted and told."

    for_steps: Annotated[int, Field(ge=1, le=1)] = Field(
        1, description="It fires at once; no other value is allowed."
    )
    clear_steps: Steps = Field(
        3, description="Consecutive frames without a new loss before a firing alert is resolved."
    )

    def raised(self, observation: DeclaredLoss, context: Context) -> BoolArray | None:
        """Return that a loss raises it, (1,)."""
        return RuleVerdict.of_run(raised=True, held=True).raised

    def evaluate(
        self, observation: DeclaredLoss | Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield the one evaluation: a loss is bad, a frame is a step without a new one."""
        if isinstance(observation, Frame):
            yield self._frame_without_loss(observation)
        else:
            yield self._loss(observation)

    def _loss(self, loss: DeclaredLoss) -> Evaluation:
        lost = loss.lost
        step = 0 if lost.after_step is None else lost.after_step + 1
        origin = Origin(step, loss.rank, (loss.rank,), None, None, float(lost.count), None)
        return Evaluation(
            group=RECORDS,
            step=step,
            received_ns=loss.received_ns,
            verdict=RuleVerdict.of_run(raised=True, held=True),
            names=(),
            origin=lambda _: origin,
            severity=lambda _: self.severity,
            extend=partial(_extended, loss=loss),
            key=f"{RECORDS}/{loss.rank}/{lost.first}",
        )

    def _frame_without_loss(self, frame: Frame) -> Evaluation:
        return Evaluation(
            group=RECORDS,
            step=frame.step,
            received_ns=frame.received_ns,
            verdict=RuleVerdict.of_run(raised=False, held=False),
            names=(),
            origin=lambda _: Origin(frame.step, None, (), None, None, 0.0, None),
            severity=lambda _: self.severity,
        )


def _extended(origin: Origin, loss: DeclaredLoss) -> Origin:
    """Return *origin* with what else was lost since; it stays where it began."""
    ranks = tuple(sorted({*origin.ranks, loss.rank}))
    return replace(origin, ranks=ranks, value=origin.value + loss.lost.count)
