"""Retention: what is kept of the logs, of the alerts and of runs that ended, and for how long.

Records go first: what they led to is in a checkpoint, and only records that are older than it are
trimmed. Alert events stay longest. Log and alert events each have a size of their own; where there
is too much, those runs pay that have most. All is done in slices, between two batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from gradwatch_server.core.entries import Forgotten
from gradwatch_server.core.state import State
from gradwatch_server.storage.rows import LogRow
from gradwatch_server.storage.store import Store
from gradwatch_wire.health import RankState

SLICE_ROWS: Final = 2_000
SLICE_BYTES: Final = 4 << 20


class Kept(Protocol):
    """Entries and heads that must stay in the log of a run."""

    def covered(self, run: str) -> int:
        """Return the newest entry that a durable checkpoint stands for."""

    def sessions(self, run: str) -> Collection[bytes] | None:
        """Return the sessions in memory, None if the run is not."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Limits of age and size; the settings of the same names describe each."""

    log_max_bytes: int = 8 << 30
    log_max_age_s: float = 7 * 86_400.0
    alerts_max_age_s: float = 365 * 86_400.0
    alerts_max_bytes: int = 1 << 30
    curves_max_bytes: int = 4 << 30
    runs_max_age_s: float = 30 * 86_400.0
    checkpoint_s: float = 300.0


class Retention:
    """Trims one store."""

    def __init__(self, store: Store, policy: RetentionPolicy) -> None:
        self._store = store
        self._policy = policy
        self._trimmed = 0  # the newest row that was too old

    def trim(self, now_ns: int, kept: Kept) -> bool:
        """Trim one slice of what is too old or too much; return whether there was any.

        Raises:
            StorageError: If the disk is full or fails; nothing is changed then.
        """
        return (
            self._trim_old(now_ns, kept)
            or self._trim_large(kept)
            or self._trim_old_alerts(now_ns)
            or self._trim_large_alerts()
            or self._store.vacuum(SLICE_BYTES)
        )

    def _trim_old(self, now_ns: int, kept: Kept) -> bool:
        too_old_ns = now_ns - round(self._policy.log_max_age_s * 1e9)
        gone: list[LogRow] = []
        future: list[LogRow] = []
        num_bytes = 0
        for row in self._store.log.oldest(self._trimmed, SLICE_ROWS):
            is_kept = too_old_ns <= row.received_ns <= now_ns or row.last > kept.covered(row.run)
            if num_bytes > SLICE_BYTES or is_kept:
                break
            # One that is stamped in the future came before the next one that is not.
            future.append(row)
            if row.received_ns < too_old_ns:
                num_bytes += sum(row.num_bytes for row in future)
                gone, future = gone + future, []
        if gone:
            self._store.log.delete([row.number for row in gone])
            self._trimmed = gone[-1].number
            for run in {row.run for row in gone}:
                self._store.log.trim_heads(run, kept.sessions(run))
        return bool(gone)

    def _trim_large(self, kept: Kept) -> bool:
        """Trim the oldest records of the runs that have most."""
        # Pages are not full, and curves have a size of their own.
        used = self._store.used_bytes() - self._store.curves.used_bytes()
        if used <= self._policy.log_max_bytes:
            return False
        sizes = self._store.log.sizes()
        counted = sum(sizes.values()) + sum(self._store.alert_events.sizes().values())
        if not counted:
            return False
        too_much = used * sum(sizes.values()) // counted - self._policy.log_max_bytes
        excess, freed = _excess(sizes, too_much), 0
        # All at once: runs share pages, which are free when the rows of all of them are gone.
        share = min(1.0, SLICE_BYTES / max(sum(excess.values()), 1))
        for run, num_bytes in excess.items():
            limit = max(1, round(share * num_bytes))
            freed += self._store.log.trim(run, kept.covered(run), limit, SLICE_ROWS)
            self._store.log.trim_heads(run, kept.sessions(run))
        return bool(freed)

    def _trim_old_alerts(self, now_ns: int) -> bool:
        too_old_ns = now_ns - round(self._policy.alerts_max_age_s * 1e9)
        gone = self._store.alert_events.trim(too_old_ns, SLICE_ROWS)
        if gone:
            self._store.state.trim_forgotten(too_old_ns)
        return bool(gone)

    def _trim_large_alerts(self) -> bool:
        """Trim the oldest alert events of the run that has most."""
        limit = self._policy.alerts_max_bytes
        if self._store.used_bytes() <= limit:
            return False
        sizes = self._store.alert_events.sizes()
        events = self._store.alert_events
        for run, excess in _excess(sizes, sum(sizes.values()) - limit).items():
            if events.trim_run(run, min(excess, SLICE_BYTES), SLICE_ROWS):
                return True
        return False


def _excess(sizes: Mapping[str, int], too_much: int) -> dict[str, int]:
    """Return by how much each run is above the level that would free so many bytes.

    All are cut to one level, and who is below it keeps everything: a quiet run pays nothing for a
    noisy one. The run that has most comes first.
    """
    if too_much <= 0:
        return {}
    left = too_much
    in_order = sorted(sizes.items(), key=lambda item: item[1], reverse=True)
    level = 0
    for number, (_, size) in enumerate(in_order, 1):
        below = in_order[number][1] if number < len(in_order) else 0
        if left <= number * (size - below):
            level = max(size - -(-left // number), 0)
            break
        left -= number * (size - below)
    return {run: size - level for run, size in in_order if size > level}


def long_ended(
    state: State, last_seen: Mapping[bytes, int], now_ns: int, age_s: float
) -> Iterator[Forgotten]:
    """Say which attempts ended so long ago that they are to leave memory."""
    too_old_ns = now_ns - round(age_s * 1e9)
    for run in state.runs.values():
        ended = 0
        for attempt in run.attempts:
            if not all(
                session.state is not RankState.ALIVE
                and max(session.last_ns, last_seen.get(session.id, 0)) < too_old_ns
                for session in attempt.sessions.values()
            ):
                break
            ended = attempt.number
        if ended:
            yield Forgotten(run.name, ended)
