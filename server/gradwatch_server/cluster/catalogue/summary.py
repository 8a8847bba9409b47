"""What an owner publishes of a run: its row in `/runs`, and whom its alerts concern."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gradwatch_server.api.problems import encode
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.views.ranks import LastSeen
from gradwatch_server.core.views.runs import summarize_run
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.notify.standing import AttemptLife
from gradwatch_server.storage.ledger import RunSummary
from gradwatch_wire.health import Phase, Status


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run as its owner published it last.

    Args:
        run: Its name.
        partition: Its partition.
        written_ns: When it was published, nanoseconds since the epoch by the owner's clock.
        heard_ns: When it was last heard of, likewise.
        row: What `/runs` said of it then.
        lives: Number of an attempt to how it lives or ended.
    """

    run: str
    partition: int
    written_ns: int
    heard_ns: int
    row: Mapping[str, Any]
    lives: Mapping[int, AttemptLife]

    @property
    def phase(self) -> Phase:
        """Where it was in its life."""
        return Phase(self.row["phase"])

    @property
    def step(self) -> int:
        """The step of its last frame, -1 without."""
        step = self.row["step"]
        return -1 if step is None else int(step)

    def last_summary(self) -> dict[str, Any]:
        """Return what it was, and when that was written."""
        return {**self.row, "written_at": isotime(self.written_ns)}

    def row_without_owner(self, *, with_curve: bool) -> bytes:
        """Return what `/runs` says of it while nobody knows how it is: JSON."""
        curve: dict[str, Any] = {
            "step_time_s": None,
            "live_attempts": None,
            "alerts": {},
            "spark": [],
        }
        return encode(
            {
                **self.row,
                **(curve if with_curve else {}),
                "status": Status.UNKNOWN,
                "last_status": self.row["status"],
                "written_at": isotime(self.written_ns),
                "owner": None,
            }
        )


def encode_run(view: RunView, last_seen: LastSeen, now_ns: int, fault: str | None) -> str:
    """Return what is published of a run, JSON."""
    numbers = [own.attempt for own in (view, *view.others)]
    lives = {number: AttemptLife.of(view, number) for number in numbers}
    plain = {
        "heard_ns": str(view.updated_ns),  # beyond what JSON readers keep exactly
        "row": summarize_run(view, last_seen, now_ns, fault),
        "lives": {str(number): asdict(own) for number, own in lives.items() if own is not None},
    }
    return encode(plain).decode("ascii")


def decode_run(found: RunSummary) -> KnownRun | None:
    """Return what was published, of this or another version; None if it cannot be read."""
    try:
        plain = json.loads(found.summary)
        known = KnownRun(
            run=found.run,
            partition=found.partition,
            written_ns=found.updated_ns,
            heard_ns=int(plain["heard_ns"]),
            row=dict(plain["row"]),
            lives={int(number): _life(own) for number, own in plain["lives"].items()},
        )
        _ = known.phase, known.step, Status(known.row["status"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return known


def _life(plain: Mapping[str, Any]) -> AttemptLife:
    return AttemptLife(
        is_alive=bool(plain["is_alive"]),
        is_newest=bool(plain["is_newest"]),
        ended_well=bool(plain["ended_well"]),
        last_ns=int(plain["last_ns"]),
    )
