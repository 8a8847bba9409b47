"""Two groups of layers side by side: the seed's gradients far below the host's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field, StringConstraints, model_validator

from gradwatch_server.core.alerting.attribution import ranks_of
from gradwatch_server.core.alerting.evaluation import Context, Evaluation, RuleVerdict
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import Limit, Rule, Sign, Steps
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.merging import total_norm
from gradwatch_wire.columns import L2
from gradwatch_wire.health import Severity, normalized_ratio

GroupName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class GroupsRule(Rule):
    """The gradient of one named group below `limit` times that of another, per element.

    The ratio is (seed / √its elements) / (host / √its elements), of the L2 norms of all layers of
    each group. The groups are those of `attach(groups={"seed": ..., "host": ...})`, or others that
    `seed` and `host` name. A run without both, or a host without a gradient, says nothing. The
    alert has the group `seed/host`, by these names, and no layers.
    """

    name = "groups"
    signs = Sign.GROUPS
    takes = (Frame,)
    spoils_steps = False
    formula = """
        `(l2 of seed / sqrt(elements of seed)) / (l2 of host / sqrt(elements of host)) < limit`;
        held while it is `< clear`.
    """
    tuning = """
        Set `seed` and `host` to the names of your groups. Raise `for_steps` for a seed that is
        blended in slowly. Lower `limit` and `clear` together for a seed that is to learn slowly.
    """
    source = """
        The ratio and 0.01 are those of the documents that gradwatch was made from; a heuristic, not
        measured: hence `info`.
    """

    seed: GroupName = Field("seed", description="Name of the group that is to learn.")
    host: GroupName = Field("host", description="Name of the group that it is compared with.")
    limit: Limit = Field(0.01, description="Ratio below which an alert begins.")
    clear: Limit = Field(0.02, description="Ratio at or above which it is over.")
    for_steps: Steps = Field(
        16, description="Consecutive frames that must be bad before the alert fires."
    )
    clear_steps: Steps = Field(
        16, description="Consecutive frames that must be good before a firing alert is resolved."
    )
    severity: Severity = Field(Severity.INFO, description="Severity of its alerts.")

    @model_validator(mode="after")
    def _in_order(self) -> GroupsRule:
        if self.clear < self.limit:
            msg = f"clear ({self.clear:g}) must not be below limit ({self.limit:g})"
            raise ValueError(msg)
        if self.seed == self.host:
            msg = f"seed and host must be two groups, not both {self.seed!a}"
            raise ValueError(msg)
        return self

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return whether the ratio is too small, (1,); None in a run without these groups."""
        if self.seed not in context.groups or self.host not in context.groups:
            return None
        return np.array([self.ratio(observation, context) < self.limit])

    def ratio(self, frame: Frame, context: Context) -> float:
        """Return the ratio at a step, NaN where a group is absent, not finite, or the host zero."""
        seed, host = (self._group(frame, context, name) for name in (self.seed, self.host))
        if seed is None or host is None or host[0] == 0.0:
            return math.nan
        return normalized_ratio(*seed, *host)

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        ratio = self.ratio(observation, context)
        ranks = ranks_of(observation.parts)
        origin = Origin(
            step=observation.step,
            rank=one_rank(ranks),
            ranks=ranks,
            layer=None,
            kind=None,
            value=ratio,
            threshold=self.limit,
        )
        yield Evaluation(
            group=f"{self.seed}/{self.host}",
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=RuleVerdict.of_run(
                raised=bool(raised.any()),
                held=bool(raised.any()) or ratio < self.clear,
                seen=not math.isnan(ratio),
            ),
            names=(),
            origin=lambda _: origin,
            severity=lambda _: self.severity,
        )

    @staticmethod
    def _group(frame: Frame, context: Context, name: str) -> tuple[float, int] | None:
        """Return norm and elements of the layers of a group that are there, None without any."""
        index = np.flatnonzero(context.groups[name][: len(frame.present)] & frame.present)
        if not len(index) or len(context.numel) < len(frame.present):
            return None
        norm = total_norm(frame.column(L2)[index])
        return (norm, int(context.numel[index].sum())) if math.isfinite(norm) else None
