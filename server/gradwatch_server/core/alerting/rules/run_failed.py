"""Training that ended with an exception."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from gradwatch_server.core.alerting.rules.base import SEVERITY
from gradwatch_server.core.alerting.rules.rank import RankRule
from gradwatch_server.core.liveness import Liveness, RankLiveness
from gradwatch_wire.health import Severity


class RunFailedRule(RankRule):
    """Training ended with an exception: a rank's BYE says so.

    It is about the run: its alert has the group `run` and no layers; `origin.ranks` are those that
    failed, `origin.step` is the last step of the one that was least far, and `origin.notes` has the
    last step of each rank. It is resolved when the rank attaches in a later attempt of the job.
    After `rank_lost` it is `info`: the others raise an exception because a rank is gone.
    """

    name = "run_failed"
    follows = ("rank_lost",)
    group: ClassVar[str] = "run"
    formula = "the reason in a rank's BYE is `exception`."
    tuning = 'Turn it off for runs that are ended by exceptions on purpose: `runs = ["!sweep-*"]`.'
    source = "A crash is the first thing that a person wants to be told of."

    severity: Severity = Field(Severity.CRITICAL, description=SEVERITY)

    def affected(self, observation: Liveness) -> Sequence[RankLiveness]:
        """Return the ranks that failed."""
        return [rank for rank in observation.ranks if rank.has_failed]
