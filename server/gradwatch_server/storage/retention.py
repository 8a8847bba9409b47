"""Retention: what is kept of the log, of the alerts and of runs that ended, and for how long.

Records go first: what they led to is in a checkpoint, and only records that are older than it are
trimmed. Frames stay as long as they are in a window, alert events longest. Log and alert events
each have a size of their own; where there is too much, those runs pay that have most. All is done
in slices, between two batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradwatch_server.core.entries import Forgotten
from gradwatch_server.core.state import State
from gradwatch_server.storage.checkpoints import SIZES
from gradwatch_server.storage.store import EntrySize, Store
from gradwatch_server.storage.usage import OTHERS, Usage, decode_usage, encode_usage
from gradwatch_wire.health import RankState

SLICE_ROWS: Final = 2_000
SLICE_BYTES: Final = 4 << 20

SAVE_ROWS: Final = 50_000
"""Rows that are counted before that is kept; after a crash they are counted again."""

RECOUNT_NS: Final = 3_600_000_000_000
"""How often all is counted anew, at most, because sessions left memory: that reads the log."""

_LOG, _ALERTS = "log", "alerts"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How much is kept; the settings of the same names say what each is."""

    log_max_bytes: int = 8 << 30
    log_max_age_s: float = 7 * 86_400.0
    alerts_max_age_s: float = 365 * 86_400.0
    alerts_max_bytes: int = 1 << 30
    series_max_bytes: int = 4 << 30
    runs_max_age_s: float = 30 * 86_400.0
    checkpoint_s: float = 60.0


class Retention:
    """Trims one store."""

    def __init__(self, store: Store, policy: RetentionPolicy) -> None:
        """Read who takes how much, as far as that is known.

        Raises:
            StorageError: If the store cannot be read.
        """
        self._store = store
        self._policy = policy
        self._trimmed = 0  # the newest entry that was too old
        kept = store.state.part(SIZES)
        self._log = decode_usage(kept, _LOG)
        self._alerts = decode_usage(kept, _ALERTS)
        self._uncounted_saved = 0  # rows counted since that was kept
        self._is_stale = False  # sessions left memory whose entries were counted by run
        self._recounted_ns = 0
        self._sweep = _Sweep()

    def trim(self, now_ns: int, upto: int, state: State) -> bool:
        """Trim one slice of what is too old or too much; return whether there was any.

        Args:
            now_ns: The time it is, nanoseconds since the epoch.
            upto: The newest entry that a durable checkpoint stands for.
            state: Says which run a session is of.

        Raises:
            StorageError: If the disk is full or fails; nothing is changed then.
        """
        # Alert events may come in faster than they are counted: those that are counted can go.
        # How much of the file is the log's is not known before all are.
        is_counting = self._count(now_ns, state)
        return (
            self._trim_old(now_ns, upto, state)
            or (not is_counting and self._trim_large(upto, state))
            or self._trim_old_alerts(now_ns)
            or self._trim_large_alerts()
            or is_counting
            or self._store.vacuum(SLICE_BYTES)
        )

    def _count(self, now_ns: int, state: State) -> bool:
        """Count what came in; only where that may come to matter, for it is read again."""
        least = min(self._policy.log_max_bytes, self._policy.alerts_max_bytes)
        if self._used_bytes() <= least // 2:
            return False
        if self._is_stale and now_ns - self._recounted_ns >= RECOUNT_NS:
            self._log, self._is_stale, self._recounted_ns = Usage(), False, now_ns
        rows = num_bytes = 0
        last = self._store.log.last_offset
        for entry in self._store.log.sizes(self._log.counted, last, SLICE_ROWS):
            self._log.add(_run_of(entry, state), entry.num_bytes)
            self._log.counted, rows = entry.offset, rows + 1
            if (num_bytes := num_bytes + entry.num_bytes) > SLICE_BYTES:
                break
        for event in self._store.alert_events.sizes(self._alerts.counted, SLICE_ROWS):
            self._alerts.add(event.run, event.num_bytes)
            self._alerts.counted, rows = event.cursor, rows + 1
            if (num_bytes := num_bytes + event.num_bytes) > SLICE_BYTES:
                break
        self._uncounted_saved += rows
        if self._uncounted_saved >= SAVE_ROWS:
            self._keep_usage()
        return rows >= SLICE_ROWS or num_bytes > SLICE_BYTES

    def _used_bytes(self) -> int:
        """Return what log, alert events and saved state take: curves have a size of their own."""
        return max(self._store.used_bytes() - self._store.series.used_bytes(), 0)

    def _keep_usage(self) -> None:
        body = encode_usage({_LOG: self._log, _ALERTS: self._alerts})
        self._store.state.save({SIZES: body}, [])
        self._uncounted_saved = 0

    def _trim_old(self, now_ns: int, upto: int, state: State) -> bool:
        too_old_ns = now_ns - round(self._policy.log_max_age_s * 1e9)
        slice_, rows, passed = _Slice(), 0, self._trimmed
        future: list[EntrySize] = []
        for entry in self._store.log.sizes(self._trimmed, upto, SLICE_ROWS):
            if slice_.num_bytes > SLICE_BYTES or too_old_ns <= entry.received_ns <= now_ns:
                break
            # One that is stamped in the future came before the next one that is not.
            future.append(entry)
            if entry.received_ns < too_old_ns:
                for each in future:
                    if not each.is_head:  # those go with their session
                        slice_.take(each, state)
                rows, passed, future = rows + len(future), entry.offset, []
        if slice_.offsets:
            self._delete(slice_)
        self._trimmed = passed
        return bool(slice_.offsets) or rows == SLICE_ROWS

    def _trim_large(self, upto: int, state: State) -> bool:
        """Trim the oldest records of those runs that have most, one slice of one sweep."""
        counted = self._log.total + self._alerts.total + self._store.series.used_bytes()
        if not self._log.total:
            return False
        # Pages are not full, and nothing says which of the three leaves them so.
        used = self._store.used_bytes() * self._log.total // counted
        too_much = used - self._policy.log_max_bytes
        if too_much <= 0:
            return False
        self._log.fold(state.runs.keys())
        excess = self._log.excess(too_much)
        sweep = self._sweep
        if not excess.keys() <= sweep.runs:
            sweep.begin(excess.keys())
        slice_, rows, at = _Slice(), 0, sweep.at
        most = min(too_much, SLICE_BYTES)
        for entry in self._store.log.sizes(sweep.at, upto, SLICE_ROWS):
            rows, at = rows + 1, entry.offset
            run = _run_of(entry, state)
            if excess.get(run, 0) > 0 and slice_.take(entry, state):
                excess[run] -= entry.num_bytes
                if slice_.num_bytes >= most:
                    break
        if slice_.offsets:
            self._delete(slice_)
        sweep.at, sweep.found = at, sweep.found or bool(slice_.offsets)
        if slice_.offsets or rows == SLICE_ROWS:
            return True
        found = sweep.found
        sweep.begin(())
        return found

    def _delete(self, slice_: _Slice) -> None:
        self._store.log.delete(slice_.offsets)
        for offset, run, num_bytes in slice_.rows:
            if offset <= self._log.counted:
                self._log.add(run, -num_bytes)
        if self._log.counted:
            self._keep_usage()

    def _trim_old_alerts(self, now_ns: int) -> bool:
        too_old_ns = now_ns - round(self._policy.alerts_max_age_s * 1e9)
        gone = self._store.alert_events.trim(too_old_ns, SLICE_ROWS)
        for event in gone:
            if event.cursor <= self._alerts.counted:
                self._alerts.add(event.run, -event.num_bytes)
        return bool(gone)

    def _trim_large_alerts(self) -> bool:
        """Trim the oldest alert events of the run that has most."""
        too_much = self._alerts.total - self._policy.alerts_max_bytes
        if too_much <= 0:
            return False
        excess = self._alerts.excess(too_much)
        run = max(excess, key=lambda name: self._alerts.by_run[name])
        most = min(excess[run], SLICE_BYTES)
        gone = self._store.alert_events.trim_run(run, most, SLICE_ROWS)
        freed = sum(event.num_bytes for event in gone)
        # What is not there was counted wrongly, before a crash for one.
        self._alerts.add(run, -freed if gone else -self._alerts.by_run[run])
        self._keep_usage()
        return True

    def trim_sessions(self, sessions: Sequence[bytes]) -> None:
        """Delete what was kept of sessions that left memory, as far as the log is trimmed.

        Raises:
            StorageError: If the disk is full or fails; nothing is changed then.
        """
        self._store.log.trim_sessions(sessions, self._trimmed)
        self._is_stale = True


class _Slice:
    """Entries that go together."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str, int]] = []
        self.num_bytes = 0

    @property
    def offsets(self) -> list[int]:
        return [offset for offset, _, _ in self.rows]

    def take(self, entry: EntrySize, state: State) -> bool:
        """Take an entry, unless what is kept cannot be read without it."""
        is_of_others = entry.session is not None and entry.session not in state.sessions
        if entry.is_head and not is_of_others:
            return False
        self.rows.append((entry.offset, _run_of(entry, state), entry.num_bytes))
        self.num_bytes += entry.num_bytes
        return True


class _Sweep:
    """A walk over the log from its oldest entry on, for runs that have too much."""

    def __init__(self) -> None:
        self.at = 0
        self.found = False
        self.runs: set[str] = set()

    def begin(self, runs: Iterable[str]) -> None:
        self.at, self.found, self.runs = 0, False, set(runs)


def _run_of(entry: EntrySize, state: State) -> str:
    session = state.sessions.get(entry.session) if entry.session is not None else None
    return OTHERS if session is None else session.hello.run


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
