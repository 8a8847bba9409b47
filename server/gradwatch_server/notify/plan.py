"""Pending notifications of one target: a pure function of events, of what was sent, of time.

It has no clock and does no I/O. What it remembers is what the delivery log keeps of a target.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gradwatch_server.core.alerting.alert import News
from gradwatch_server.notify.policy import Policy
from gradwatch_server.storage.deliveries import (
    DeliveryProgress,
    DeliveryState,
    GroupTimes,
    TargetChange,
)
from gradwatch_server.storage.rows import AlertEvent
from gradwatch_wire.health import AlertState

MAX_ENTRIES: Final = 10_000
"""Alerts that are remembered of one target. What comes then waits in the store; of those that were
told, the oldest is forgotten, and nobody is told when it is over."""


@dataclass(frozen=True, slots=True)
class NotificationBatch:
    """Batch that goes out as one message.

    Args:
        is_resend: Whether all of them were told before, and fire on.
        is_again: Whether it may have arrived already: an answer did not come, or was not noted.
    """

    group: str
    entries: tuple[DeliveryState, ...]
    is_resend: bool = False
    is_again: bool = False


class NotificationQueue:
    """The alerts that one target is to be told of, or was told of."""

    def __init__(
        self,
        policy: Policy,
        entries: Sequence[DeliveryState] = (),
        groups: Mapping[str, GroupTimes] | None = None,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self._policy = policy
        self._entries = {entry.alert_id: entry for entry in entries}
        self._groups = dict(groups or {})
        self._max_entries = max_entries
        self._members: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for entry in entries:
            self._members[entry.group][entry.alert_id] = None
        self._changed: set[str] = set()  # ids and groups that are to be saved
        self._changed_groups: set[str] = set()
        self._resent_s = 0.0
        # Alert id -> when it was last told to fire. After a restart an end is told at once.
        self._told_s: dict[str, float] = {}

    @property
    def num_pending(self) -> int:
        """Events that are still to be told."""
        return sum(entry.is_pending for entry in self._entries.values())

    @property
    def entries(self) -> Sequence[DeliveryState]:
        return tuple(self._entries.values())

    def has_room(self) -> bool:
        """Make room for one more alert; return False if all of them still have to be told."""
        if len(self._entries) < self._max_entries:
            return True
        oldest = next((entry for entry in self._entries.values() if not entry.is_pending), None)
        if oldest is not None:
            self._forget(oldest)
        return oldest is not None

    def accept(self, event: AlertEvent, now_s: float) -> None:
        """Take an alert event; one that is not wanted changes nothing."""
        alert = event.alert
        known = self._entries.get(alert["id"])
        if alert["state"] == AlertState.FIRING:
            self._accept_firing(event, known, now_s)
        elif known is not None:
            self._accept_resolved(event, known, now_s)

    def _accept_firing(self, event: AlertEvent, known: DeliveryState | None, now_s: float) -> None:
        alert = event.alert
        news = (alert.get("update") or {}).get("news", ())
        has_risen = News.SEVERITY in news or News.KIND in news
        is_muted = bool(alert.get("silenced")) or bool(alert.get("acknowledged"))
        # Who knows of an alert does not know that it became worse.
        is_told_now = self._policy.wants(alert) and (
            not is_muted or (has_risen and not alert.get("silenced"))
        )
        if known is None or not known.is_told:
            if is_told_now:
                self._put(self._entry(event, is_pending=True), now_s)
            elif known is not None:
                self._forget(known)
            return
        is_pending = is_told_now and (has_risen or known.is_pending)
        entry = self._entry(event, is_pending=is_pending)
        self._put(replace(entry, is_told=True), now_s)

    def _accept_resolved(self, event: AlertEvent, known: DeliveryState, now_s: float) -> None:
        is_kept = self._policy.resolved if known.is_told else not event.alert.get("silenced")
        if is_kept:
            entry = self._entry(event, is_pending=True)
            self._put(replace(entry, is_told=known.is_told, group=known.group), now_s)
        else:
            self._forget(known)

    def _entry(self, event: AlertEvent, *, is_pending: bool) -> DeliveryState:
        alert = event.alert
        return DeliveryState(
            alert_id=alert["id"],
            group=self._policy.group_of(alert),
            run=alert["run"],
            rule=alert["rule"],
            severity=alert["severity"],
            state=alert["state"],
            cursor=event.cursor,
            is_pending=is_pending,
        )

    def _put(self, entry: DeliveryState, now_s: float) -> None:
        before = self._entries.pop(entry.alert_id, None)
        if before is not None and before.group != entry.group:
            self._leave(before)
        self._entries[entry.alert_id] = entry  # the newest last
        self._members[entry.group][entry.alert_id] = None
        self._changed.add(entry.alert_id)
        times = self._times(entry.group)
        if entry.is_pending and not times.since_s:
            self._set_times(entry.group, replace(times, since_s=now_s))

    def _forget(self, entry: DeliveryState) -> None:
        self._entries.pop(entry.alert_id, None)
        self._told_s.pop(entry.alert_id, None)
        self._changed.add(entry.alert_id)
        self._leave(entry)

    def _leave(self, entry: DeliveryState) -> None:
        self._members[entry.group].pop(entry.alert_id, None)
        if not self._has_pending(entry.group):
            self._set_times(entry.group, replace(self._times(entry.group), since_s=0.0))

    def _times(self, group: str) -> GroupTimes:
        return self._groups.get(group, GroupTimes())

    def _set_times(self, group: str, times: GroupTimes) -> None:
        self._groups[group] = times
        self._changed_groups.add(group)

    def due(self, now_s: float, doubtful: str | None = None) -> NotificationBatch | None:
        """Return the next message that is due, None if none is.

        Args:
            doubtful: The group of a message of which it is not known whether it arrived.
        """
        ready = [group for group in self._members if now_s >= self._ready_s(group, now_s)]
        due = [group for group in ready if self._pending_from_s(group, now_s) <= now_s]
        if due:
            group = doubtful if doubtful in due else due[0]
            pending = _by_cursor(
                entry
                for entry in self._of(group)
                if entry.is_pending and self._may_end_s(entry, now_s) <= now_s
            )
            return NotificationBatch(group, pending, is_again=group == doubtful)
        standing = self._standing()
        if standing and now_s >= self._resend_due_s(now_s):
            return NotificationBatch("", standing, is_resend=True)
        return None

    def next_s(self, now_s: float) -> float | None:
        """Return when something may be due next, None if that takes an event."""
        times = [
            max(self._ready_s(group, now_s), self._pending_from_s(group, now_s))
            for group in self._members
            if self._has_pending(group)
        ]
        if self._standing():
            times.append(self._resend_due_s(now_s))
        return min(times, default=None)

    def _ready_s(self, group: str, now_s: float) -> float:
        """Return when the message of a group is due. A clock that was set back delays none."""
        times, policy = self._times(group), self._policy
        since_s, sent_s = min(times.since_s, now_s), min(times.sent_s, now_s)
        return max(since_s + policy.group_wait_s, sent_s + policy.group_interval_s)

    def _pending_from_s(self, group: str, now_s: float) -> float:
        """Return when the first pending event of a group may be told, infinity without any."""
        times_s = (self._may_end_s(entry, now_s) for entry in self._of(group) if entry.is_pending)
        return min(times_s, default=math.inf)

    def _may_end_s(self, entry: DeliveryState, now_s: float) -> float:
        """Return when the end of an alert may be told; all else may be told at once."""
        told_s = self._told_s.get(entry.alert_id, math.inf)
        if entry.state == AlertState.FIRING or told_s > now_s:  # also of a clock that was set back
            return 0.0
        return told_s + self._policy.min_firing_s

    def _resend_due_s(self, now_s: float) -> float:
        return min(self._resent_s, now_s) + self._policy.resend_s

    def _of(self, group: str) -> Iterator[DeliveryState]:
        return (self._entries[alert_id] for alert_id in self._members[group])

    def _has_pending(self, group: str) -> bool:
        return any(entry.is_pending for entry in self._of(group))

    def _standing(self) -> tuple[DeliveryState, ...]:
        """Return what was told, fires on, and is to be sent again at some time."""
        if not self._policy.resend_s:
            return ()
        told = (entry for entry in self._entries.values() if entry.is_told)
        return _by_cursor(entry for entry in told if entry.state == AlertState.FIRING)

    def settled(self, batch: NotificationBatch, now_s: float) -> None:
        """Note that a message was delivered, or that nothing is to be sent again now."""
        if batch.is_resend:
            self._resent_s = now_s
            return
        for entry in batch.entries:
            self._settle(entry, now_s)
        since_s = self._times(batch.group).since_s if self._has_pending(batch.group) else 0.0
        self._set_times(batch.group, GroupTimes(since_s, sent_s=now_s))
        self._resent_s = self._resent_s or now_s

    def _settle(self, told: DeliveryState, now_s: float) -> None:
        entry = self._entries.get(told.alert_id)
        if entry is None:
            return
        if entry.state != AlertState.FIRING and entry.cursor == told.cursor:
            self._forget(entry)
            return
        self._told_s[entry.alert_id] = now_s
        is_pending = entry.is_pending and entry.cursor != told.cursor
        self._entries[entry.alert_id] = replace(entry, is_told=True, is_pending=is_pending)
        self._changed.add(entry.alert_id)

    def drop(self, entries: Sequence[DeliveryState]) -> None:
        """Forget alerts: they were given up, or are not to be told any more."""
        for told in entries:
            entry = self._entries.get(told.alert_id)
            if entry is not None:
                self._forget(entry)

    def changes(self, progress: DeliveryProgress, now_s: float) -> TargetChange:
        """Return what is to be saved with how far the target is; it is not returned again."""
        self._end_groups(now_s)
        groups, entries = self._groups, self._entries
        change = TargetChange(
            progress,
            entries=[entries[alert_id] for alert_id in self._changed if alert_id in entries],
            forgotten=[alert_id for alert_id in self._changed if alert_id not in entries],
            groups={group: groups[group] for group in self._changed_groups if group in groups},
            ended=[group for group in self._changed_groups if group not in groups],
        )
        self._changed.clear()
        self._changed_groups.clear()
        return change

    def keep_changes(self, change: TargetChange) -> None:
        """Return changes again the next time: they could not be saved."""
        self._changed.update(entry.alert_id for entry in change.entries)
        self._changed.update(change.forgotten)
        self._changed_groups.update(change.groups, change.ended)

    def _end_groups(self, now_s: float) -> None:
        """Forget the groups without alerts, once their next message need not wait any more."""
        interval_s = self._policy.group_interval_s
        for group, times in list(self._groups.items()):
            if not self._members.get(group) and now_s >= times.sent_s + interval_s:
                del self._groups[group]
                self._members.pop(group, None)
                self._changed_groups.add(group)


def _by_cursor(entries: Iterable[DeliveryState]) -> tuple[DeliveryState, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.cursor))
