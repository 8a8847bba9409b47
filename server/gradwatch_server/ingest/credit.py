"""Credit: bytes of records that each session may have sent and not acknowledged.

What is granted, together with what was taken back and is not confirmed, never exceeds the queue, so
that nothing of a client that keeps to its window is ever dropped. A window widens while it is used,
and is taken back from a session that is idle. Sessions that have records and no room are served
first in, first out. It knows neither sockets nor clocks. Typical use::

    credit.open(session, peer, now_s)
    credit.consume(session, num_bytes, now_s)  # a record has left the queue
    window_bytes, shrink = credit.answer(session, now_s)  # once for each session and batch
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

FIRST_RECORD_BYTES: Final = 64 << 10
"""Size that the first record of a session may have."""

NEW_SHARE: Final = 4
"""Part of the queue that is granted to sessions of which no record came yet, and as much to those
without windows: whoever opens thousands of them leaves the rest to those that send."""

MAX_LOOKED: Final = 512
"""Waiting sessions that one round considers."""

LOOK_EVERY_S: Final = 0.05
"""Time between two looks at all that wait, where the first of them cannot be served."""

CONFIRM_S: Final = 6.0
"""Time after which a client that confirms nothing has to say HELLO again."""

MARGIN_BYTES: Final = 64
"""Largest difference between a client's count of a record and its size in the queue."""

IDLE_S: Final = 1.0
"""Time without a record after which the window is taken back to the size of one record."""


@dataclass(slots=True)
class _Account:
    """Credit of one session.

    Args:
        is_fixed: Whether its client does not keep to windows: then the promise stays as it is.
        active_s: When it was last served, or asked for more.
        record_bytes: Size of its largest record so far, `FIRST_RECORD_BYTES` before the first.
        wanted_bytes: Window that it has use for.
        promised_bytes: Granted, and not yet out of the queue.
        taken_back_bytes: Taken back, and not confirmed by the client.
        used_bytes: Bytes that left the queue since the last answer.
        need_bytes: Size of the record that waits.
        shrink: Number of the newest window that took something back.
        has_sent: Whether a record of it has left the queue.
        taken_back_s: When something was taken back.
    """

    peer: bytes
    is_fixed: bool
    active_s: float
    record_bytes: int = FIRST_RECORD_BYTES
    wanted_bytes: int = FIRST_RECORD_BYTES
    promised_bytes: int = 0
    taken_back_bytes: int = 0
    used_bytes: int = 0
    need_bytes: int = 0
    shrink: int = 0
    has_sent: bool = False
    taken_back_s: float = 0.0


@dataclass(slots=True)
class _Connection:
    """Sessions of one connection.

    Args:
        num_fixed: Sessions whose client does not keep to windows.
        granted_bytes: What all of them may have in the queue or on its way.
    """

    sessions: set[bytes] = field(default_factory=set)
    num_fixed: int = 0
    granted_bytes: int = 0


class Credit:
    """Accounts of all sessions.

    Args:
        max_bytes: Bytes that may be granted together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._accounts: dict[bytes, _Account] = {}
        self._connections: dict[bytes, _Connection] = {}
        self._granted_bytes = 0  # promised or taken back, of all
        # Promised to sessions of which no record came yet, and to those without windows.
        self._new_bytes = {False: 0, True: 0}
        self._records_bytes = 0  # a record for each
        self._waiting: OrderedDict[bytes, None] = OrderedDict()
        self._looked_s = float("-inf")
        self._busy: OrderedDict[bytes, None] = OrderedDict()  # by when they were last active

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be granted."""
        return self.max_bytes - self._granted_bytes

    @property
    def granted_bytes(self) -> int:
        """Bytes that are granted, with those that were taken back and are not confirmed."""
        return self._granted_bytes

    def __contains__(self, session: bytes) -> bool:
        return session in self._accounts

    def peer_of(self, session: bytes) -> bytes:
        return self._accounts[session].peer

    def sessions_of(self, peer: bytes) -> Collection[bytes]:
        known = self._connections.get(peer)
        return () if known is None else known.sessions

    def idle(self, since_s: float) -> list[bytes]:
        """Return the sessions without a record since a time."""
        return [
            session for session, account in self._accounts.items() if account.active_s < since_s
        ]

    def limit_bytes(self, peer: bytes) -> int | None:
        """Return what the records of a connection may take in the queue; None: not known here."""
        known = self._connections.get(peer)
        return None if known is None or known.num_fixed else known.granted_bytes

    def open(self, session: bytes, peer: bytes, now_s: float) -> None:
        """Begin with a session, or anew on another connection, with room for one record."""
        account = self._open(session, _Account(peer, False, now_s))
        if not self._waiting and account.record_bytes <= min(
            self.free_bytes, self._free_for(account)
        ):
            self._grant(account, account.record_bytes)

    def open_fixed(self, session: bytes, peer: bytes, limit_bytes: int, now_s: float) -> int:
        """Begin with a session whose client does not keep to windows; return its promise, bytes.

        One record it sends in any case.
        """
        account = self._open(session, _Account(peer, True, now_s))
        self._grant(account, min(limit_bytes, self._fair(account, now_s)))
        return max(account.promised_bytes, 1)

    def _open(self, session: bytes, account: _Account) -> _Account:
        self.forget(session)
        self._accounts[session] = account
        connection = self._connections.setdefault(account.peer, _Connection())
        connection.sessions.add(session)
        connection.num_fixed += account.is_fixed
        self._records_bytes += account.record_bytes
        return account

    def forget(self, session: bytes) -> None:
        account = self._accounts.pop(session, None)
        if account is not None:
            self._count(account, -account.promised_bytes - account.taken_back_bytes)
            self._count_new(account, -account.promised_bytes)
            self._records_bytes -= account.record_bytes
            self._waiting.pop(session, None)
            self._busy.pop(session, None)
            connection = self._connections[account.peer]
            connection.sessions.discard(session)
            connection.num_fixed -= account.is_fixed
            if not connection.sessions:
                del self._connections[account.peer]

    def consume(self, session: bytes, num_bytes: int, now_s: float) -> None:
        """Count a record that has left the queue."""
        account = self._accounts.get(session)
        if account is None or account.is_fixed:
            return
        more = num_bytes + MARGIN_BYTES - account.record_bytes
        if more > 0 or not account.has_sent:
            self._records_bytes += more
            account.record_bytes += more
        if not account.has_sent:
            self._count_new(account, -account.promised_bytes)
            account.has_sent = True
        promised = min(num_bytes, account.promised_bytes)
        account.promised_bytes -= promised
        self._count(account, -promised)
        account.used_bytes += num_bytes
        self._mark_active(session, account, now_s)

    def beat(self, session: bytes, shrink: int, waiting_bytes: int, now_s: float) -> None:
        """Take in what a BEAT says.

        Args:
            shrink: Number of the newest smaller window that the client obeys. All that it sent
                before has left the queue by now: messages of a connection come in order.
            waiting_bytes: Size of the record that waits for a wider window, 0 for none.
        """
        account = self._accounts.get(session)
        if account is None or account.is_fixed:
            return
        if shrink >= account.shrink:
            self._count(account, -account.taken_back_bytes)
            account.taken_back_bytes = 0
        account.need_bytes = waiting_bytes
        if waiting_bytes:
            self._mark_active(session, account, now_s)
            self._waiting.setdefault(session)
        else:
            self._waiting.pop(session, None)

    def answer(self, session: bytes, now_s: float) -> tuple[int | None, int]:
        """Return `window_bytes` and `shrink` of an ACK: None and 0 for one without credit."""
        account = self._accounts.get(session)
        if account is None or account.is_fixed:
            return None, 0
        fair = self._fair(account, now_s)
        if 2 * account.used_bytes >= account.wanted_bytes:
            account.wanted_bytes = min(2 * account.wanted_bytes, fair)
        else:
            account.wanted_bytes = max(account.record_bytes, min(account.wanted_bytes, fair))
        account.used_bytes = 0
        if session not in self._waiting:
            if now_s - account.active_s >= IDLE_S:
                self._take_back(account, now_s)
            elif not self._waiting:
                self._grant(account, account.wanted_bytes - account.promised_bytes)
        return account.promised_bytes, account.shrink

    def serve(self, now_s: float) -> list[bytes]:
        """Grant what is free to those that wait, the longest waiting first; return these."""
        served = []
        for session in list(islice(self._waiting, MAX_LOOKED)):
            account = self._accounts[session]
            missing = account.need_bytes - account.promised_bytes
            if missing > self.free_bytes:
                break
            if not account.has_sent and missing > self._free_for(account):
                if len(self._waiting) > MAX_LOOKED:
                    self._waiting.move_to_end(session)
                continue  # one of which records came may be behind it
            share = self.free_bytes // len(self._waiting)
            self._grant(
                account,
                max(missing, min(self._fair(account, now_s) - account.promised_bytes, share)),
            )
            self._mark_active(session, account, now_s)
            account.need_bytes = 0
            del self._waiting[session]
            served.append(session)
        return served or self._take_from_waiting(now_s)

    def _take_from_waiting(self, now_s: float) -> list[bytes]:
        """Take back from the last that wait what the first one lacks; return these.

        A window that is too small for the next record is of no use to its session. If all that wait
        kept theirs, none would ever be served.
        """
        first = next(iter(self._waiting), b"")
        if not first or now_s - self._looked_s < LOOK_EVERY_S:
            return []
        self._looked_s = now_s
        account, sessions = self._accounts[first], []
        free_bytes = (
            self.free_bytes if account.has_sent else min(self.free_bytes, self._free_for(account))
        )
        lacking = account.need_bytes - account.promised_bytes - free_bytes
        for session in reversed(self._waiting):
            if lacking <= 0 or session == first:
                break
            other = self._accounts[session]
            lacking -= other.taken_back_bytes  # on its way already
            is_of_use = account.has_sent or not other.has_sent
            if is_of_use and other.promised_bytes and not other.taken_back_bytes:
                lacking -= other.promised_bytes
                self._shrink(other, other.promised_bytes, now_s)
                sessions.append(session)
        return sessions

    def reclaim(self, now_s: float, is_heard: Callable[[bytes], bool]) -> list[bytes]:
        """Return idle sessions that hold what others wait for: their answer takes it back.

        Those that confirm nothing for long are forgotten.

        Args:
            is_heard: Whether all that came on a connection has left the queue. A confirmation that
                waits there is the queue's delay, not the client's.
        """
        sessions = []
        for session, account in list(self._accounts.items()):
            is_idle = now_s - account.active_s >= IDLE_S and session not in self._waiting
            is_late = account.taken_back_bytes and now_s - account.taken_back_s >= CONFIRM_S
            if is_late and is_heard(account.peer):
                self.forget(session)
            elif self._waiting and is_idle and account.promised_bytes and not account.is_fixed:
                sessions.append(session)
        return sessions

    def _free_for(self, account: _Account) -> int:
        """Return what is left for a session of which no record came, or without windows."""
        return self.max_bytes // NEW_SHARE - self._new_bytes[account.is_fixed]

    def _count(self, account: _Account, num_bytes: int) -> None:
        self._granted_bytes += num_bytes
        self._connections[account.peer].granted_bytes += num_bytes

    def _count_new(self, account: _Account, num_bytes: int) -> None:
        if not account.has_sent:
            self._new_bytes[account.is_fixed] += num_bytes

    def _fair(self, account: _Account, now_s: float) -> int:
        """Return the window at which all busy sessions have the same, and idle ones a record."""
        while self._busy:
            session = next(iter(self._busy))
            if now_s - self._accounts[session].active_s < IDLE_S:
                break
            del self._busy[session]
        num_busy = max(len(self._busy), 1)
        rest = self.max_bytes - self._records_bytes
        return max(account.record_bytes, rest // num_busy, self.max_bytes // 2 // num_busy)

    def _grant(self, account: _Account, num_bytes: int) -> None:
        limit = (
            self.free_bytes if account.has_sent else min(self.free_bytes, self._free_for(account))
        )
        granted = max(0, min(num_bytes, limit))
        account.promised_bytes += granted
        self._count(account, granted)
        self._count_new(account, granted)

    def _take_back(self, account: _Account, now_s: float) -> None:
        """Leave an idle session one record, or nothing where there is no room for one of each."""
        floor = account.record_bytes if self._records_bytes <= self.max_bytes // 2 else 0
        excess = account.promised_bytes - floor
        if excess > 0 and not account.taken_back_bytes:
            self._shrink(account, excess, now_s)
        elif excess < 0 and not self._waiting:
            self._grant(account, -excess)

    def _shrink(self, account: _Account, num_bytes: int, now_s: float) -> None:
        """Take bytes back, which are free once the client has confirmed it."""
        account.promised_bytes -= num_bytes
        self._count_new(account, -num_bytes)
        account.taken_back_bytes += num_bytes
        account.taken_back_s = now_s
        account.shrink += 1

    def _mark_active(self, session: bytes, account: _Account, now_s: float) -> None:
        account.active_s = now_s
        self._busy[session] = None
        self._busy.move_to_end(session)
