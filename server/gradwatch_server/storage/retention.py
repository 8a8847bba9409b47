"""Retention: what is kept of the log, of the alerts and of runs that ended, and for how long.

Records go first: what they led to is in a checkpoint, and only records that are older than it are
trimmed. Frames stay as long as they are in a window, alert events longest. All is done in slices,
between two batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradwatch_server.core.entries import Forgotten
from gradwatch_server.core.state import State
from gradwatch_server.storage.store import Store
from gradwatch_wire.health import RankState

SLICE_ROWS: Final = 2_000
SLICE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How much is kept; the settings of the same names say what each is."""

    log_max_bytes: int = 8 << 30
    log_max_age_s: float = 7 * 86_400.0
    alerts_max_age_s: float = 365 * 86_400.0
    runs_max_age_s: float = 30 * 86_400.0
    checkpoint_s: float = 60.0


class Retention:
    """Trims one store."""

    def __init__(self, store: Store, policy: RetentionPolicy) -> None:
        self._store = store
        self._policy = policy
        self._trimmed = 0  # the newest entry that was looked at and went

    def trim(self, now_ns: int, upto: int) -> bool:
        """Trim one slice of what is too old or too much; return whether there was any.

        Args:
            now_ns: The time it is, nanoseconds since the epoch.
            upto: The newest entry that a durable checkpoint stands for.

        Raises:
            StorageError: If the disk is full or fails; nothing is changed then.
        """
        return (
            self._trim_log(now_ns, upto)
            or self._trim_alert_events(now_ns)
            or self._store.vacuum(SLICE_BYTES)
        )

    def _trim_log(self, now_ns: int, upto: int) -> bool:
        too_much = self._store.used_bytes() - self._policy.log_max_bytes
        too_old_ns = now_ns - round(self._policy.log_max_age_s * 1e9)
        last, size = self._trimmed, 0
        for entry in self._store.log.sizes(self._trimmed, upto, SLICE_ROWS):
            if size > SLICE_BYTES or (size >= too_much and entry.received_ns >= too_old_ns):
                break
            last, size = entry.offset, size + entry.num_bytes
        if last == self._trimmed:
            return False
        self._store.log.trim(self._trimmed, last)
        self._trimmed = last
        return True

    def _trim_alert_events(self, now_ns: int) -> bool:
        too_old_ns = now_ns - round(self._policy.alerts_max_age_s * 1e9)
        return self._store.alert_events.trim(too_old_ns, SLICE_ROWS)

    def trim_sessions(self, sessions: Sequence[bytes]) -> None:
        """Delete what was kept of sessions that left memory, as far as the log is trimmed.

        Raises:
            StorageError: If the disk is full or fails; nothing is changed then.
        """
        self._store.log.trim_sessions(sessions, self._trimmed)


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
