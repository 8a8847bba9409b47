"""Ranks that went without BYE."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from gradwatch_server.core.alerting.rules.base import SEVERITY
from gradwatch_server.core.alerting.rules.rank import RankRule
from gradwatch_server.core.liveness import Liveness, RankLiveness
from gradwatch_wire.health import Severity


class RankLostRule(RankRule):
    """A rank that went without BYE: nothing was heard of it for the session timeout.

    It was killed, its node is gone, or the network is. It is about the run: its alert has the group
    `ranks` and no layers; `origin.ranks` are those that are gone, `origin.step` is the last step of
    the one that was least far, and `origin.notes` has the last step of each rank. It is resolved
    when they are heard of again, and when the rank attaches in a later attempt of the job. What is
    sent of a lost rank from spill files does not bring it back.
    """

    name = "rank_lost"
    formula = "nothing is heard of a rank for `session_timeout_s`, and it has sent no BYE."
    tuning = """
        The time is the setting `session_timeout_s` of the aggregator. Turn the rule off for runs
        that are killed on purpose: `runs = ["!preemptible-*"]`.
    """
    source = "A process that is killed says nothing, and the others wait for it in a collective."

    severity: Severity = Field(Severity.CRITICAL, description=SEVERITY)

    def affected(self, observation: Liveness) -> Sequence[RankLiveness]:
        """Return the ranks that are gone."""
        return [rank for rank in observation.ranks if rank.is_lost]
