"""Budgets of what the core holds of one session, attempt or run, which are facts of the log."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from gradwatch_server.budget import KIB, MIB, UNLIMITED
from gradwatch_server.budget import field as _budget


class LoggedBudgets(BaseModel):
    """Those that the core acts on: alerts may depend on them, so they are facts of the log.

    A budget that is declared here is written to the log at a start that changes it, and is what
    `State.budgets` says from there on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    open_frames_bytes_per_attempt: int = _budget(
        64 * MIB,
        "bytes",
        "attempt",
        "Records of steps that wait for other ranks; as much again for each 1,024 ranks that live.",
        why="30 records of the largest size, or 2 steps of 1,024 ranks with 300 layers",
        at_limit="its oldest step closes early, without the ranks that are missing: its coverage "
        "says so",
        least=2 * MIB,
    )
    manifests_bytes_per_session: int = _budget(
        32 * MIB,
        "bytes",
        "session",
        "What the manifests of one session say of its layers.",
        why="100 sets of 10,000 layers in shards; a client remembers 64",
        at_limit="its oldest manifest is dropped: records of it count as unresolved",
        least=4 * MIB,
    )
    layers_bytes_per_attempt: int = _budget(
        32 * MIB,
        "bytes",
        "attempt",
        "Names and groups of all layers that were ever declared in it.",
        why="32,768 layers, the most there can be, with the longest names and in 6 groups each",
        at_limit="a manifest with further layers is not taken: its records count as unresolved; "
        "layers in further groups are watched without them",
        least=1 * MIB,
    )
    alert_events: int = _budget(
        200,
        "count",
        "run",
        "Alert events that a run may have at once.",
        why="a fault in every one of 64 groups, three times over",
        at_limit="the alert stays as it is, and counts how often it was over and back; a quarter "
        "is kept for what is a warning or critical, an eighth for the latter, and the first "
        "critical one of a rule in an attempt is told in any case",
        least=16,
    )
    alert_events_per_min: int = _budget(
        60,
        "per min",
        "run",
        "Alert events that a run may have beyond those, for ever.",
        why="nobody reads more than one a second",
        at_limit="as with `alert_events`",
    )
    alert_body_bytes: int = _budget(
        16 * KIB,
        "bytes",
        "run",
        "One alert as it is stored and told.",
        why="its message is at most 4 KiB",
        at_limit="fewer names are in it, and shorter ones; how many there are is told",
        least=12 * KIB,
        most=1 * MIB,
    )

    @classmethod
    def unlimited(cls) -> LoggedBudgets:
        """Return what is in force before the log has budgets."""
        values: dict[str, Any] = dict.fromkeys(cls.model_fields, UNLIMITED)
        return LoggedBudgets.model_construct(**values)
