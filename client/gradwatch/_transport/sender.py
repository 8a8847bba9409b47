"""The background thread: owns the socket, turns collections into records, sends and receives.

The training thread only appends to a deque. While records come quickly the thread wakes on its own
clock: to wake it for each record would cost more than the append. While nothing is under way the
thread pauses, since each of its rounds takes the interpreter from the training thread, and the next
hand-over wakes it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from gradwatch._faults import Faults
from gradwatch._transport.connection import Connection
from gradwatch._transport.hang import HangWatch
from gradwatch._transport.kubeflow import KubeflowStatus
from gradwatch._transport.route import Route
from gradwatch._transport.spill import Spill, claim_orphans
from gradwatch_wire import Bye, Json, Manifest, ProtocolError, Record, Stats, decode
from gradwatch_wire.keyfile import ClientKey
from gradwatch_wire.session.driver import SessionDriver
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session, SessionPhase
from gradwatch_wire.session.spill_source import OrphanedSessions
from gradwatch_wire.session.timing import CLOSE_S, MAX_BATCH, ROUND_MS

JOIN_S: Final = CLOSE_S + 0.5
"""Longest wait of `close`: the thread looks at the clock once in a while only."""

PAUSE_S: Final = 0.2
"""Longest pause while nothing is under way; an alert for `on_alert` waits for its end."""


MAX_COLLECTIONS: Final = 1_024
"""Collections that wait for the sender. Beyond it the oldest is dropped and counted."""


class Collected(Protocol):
    """Something collected whose numbers may still be on their way from the device.

    `manifests`, where there are any, have to be sent even if its numbers are dropped, or if it
    `is_lost`: there was no room for them.
    """

    @property
    def step(self) -> int:
        """The step it was collected at."""

    time_ns: int
    manifests: list[Manifest]
    is_lost: bool

    def ready(self) -> bool:
        """Tell whether `records` may be called; never waits."""

    def records(self) -> list[Record]:
        """Return the records made of it."""


class CollectionQueue:
    """A queue that is bounded in number; when it is full, the oldest collection is dropped."""

    def __init__(self) -> None:
        self.num_dropped = 0
        # Held by either thread for a few list operations, never across I/O.
        self._lock = threading.Lock()
        self._waiting: deque[Collected] = deque()
        self._num_lost = 0  # dropped since the last one that was taken

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, collected: Collected) -> bool:
        """Append a collection; return False if its numbers or the oldest were dropped."""
        with self._lock:
            self._waiting.append(collected)
            self.num_dropped += collected.is_lost
            if len(self._waiting) <= MAX_COLLECTIONS:
                return not collected.is_lost
            oldest = self._waiting.popleft()
            self._waiting[0].manifests[:0] = oldest.manifests
            self._count_dropped([oldest])
            return False

    def take(self) -> tuple[int, Collected] | None:
        """Take the oldest collection if its numbers have arrived.

        Return with it the number of those that were dropped before it, after the one taken last.
        """
        while self._waiting:
            with self._lock:
                oldest = self._waiting[0] if self._waiting else None
            # Looked at without the lock, for which `put` would have to wait.
            if oldest is None or not oldest.ready():
                return None
            with self._lock:
                if self._waiting and self._waiting[0] is oldest:
                    return self._take_num_lost(), self._waiting.popleft()
        return None

    def drop_all(self) -> int:
        """Drop what waits; return the number of those dropped after the one taken last."""
        with self._lock:
            self._count_dropped(self._waiting)
            self._waiting.clear()
            return self._take_num_lost()

    def _count_dropped(self, dropped: Collection[Collected]) -> None:
        self.num_dropped += sum(not each.is_lost for each in dropped)  # those are counted already
        self._num_lost += len(dropped)

    def _take_num_lost(self) -> int:
        num_lost, self._num_lost = self._num_lost, 0
        return num_lost


class Sender(threading.Thread):
    """Runs until `close`, and no longer than 2 s after it.

    Args:
        key: For an aggregator that asks for one; the same for all endpoints.
        step: Returns the step under way; the stack of a hang is sent if given.
        status: Status of the platform's job that is kept up to date, if given.

    Attributes:
        record_s: CPU time of this thread for a record, seconds, a moving mean; 0 before the first.
    """

    def __init__(
        self,
        session: Session[Outbox],
        endpoints: Sequence[str],
        faults: Faults,
        on_alert: Callable[[dict[str, Json]], object] | None,
        key: ClientKey | None = None,
        spill: Spill | None = None,
        is_training: Callable[[], bool | None] | None = None,
        step: Callable[[], int | None] | None = None,
        status: KubeflowStatus | None = None,
    ) -> None:
        super().__init__(name="gradwatch-sender", daemon=True)
        self.session = session
        self.queue = CollectionQueue()
        self.spill = spill
        self.orphaned: OrphanedSessions | None = None
        self._faults = faults
        self._on_alert = on_alert
        self._key = key
        now_s = time.monotonic()
        self.route = Route(endpoints, now_s, has_key=key is not None, faults=faults)
        self._connection: Connection | None = None
        self._driver = SessionDriver(session, now_s)
        if is_training is not None:
            self._driver.is_training = is_training
        self._hang = None if step is None else HangWatch(step, now_s)
        self._status = status
        self._trainer = threading.get_ident()  # the thread that hands over collections
        self.record_s = 0.0
        self._bye: Bye | None = None
        self._has_said_bye = False
        self._closing = threading.Event()
        self._is_pausing = False
        self._pause = threading.Event()

    def put(self, collected: Collected) -> None:
        """Hand over a collection; called by the training thread, takes about a microsecond."""
        self._trainer = threading.get_ident()
        if not self.queue.put(collected):
            self._faults.note("dropped", "the device or the sender does not keep up")
        if self._is_pausing:
            self._pause.set()

    def start(self) -> None:
        """Open the connection, and begin to send.

        Raises:
            ValueError: If there is no room for the connection, or no thread can be started.
        """
        self._connection = Connection(self.route.endpoint, self._key)
        try:
            super().start()
        except RuntimeError as error:
            self._connection.close()
            msg = f"threads: the background thread cannot be started: {error}"
            raise ValueError(msg) from error

    def begin_close(self, reason: str, last_step: int = -1) -> None:
        """Let it send what is left and BYE, within `CLOSE_S`; called once."""
        self._bye = Bye(reason=reason, last_step=last_step)
        self._closing.set()
        self._pause.set()

    def wait_closed(self, timeout_s: float = JOIN_S) -> None:
        """Wait until that is done, at most so long."""
        if threading.current_thread() is not self:  # it is when on_alert closes the watch
            self.join(max(0.0, timeout_s))

    def close(self, reason: str) -> None:
        """Send what is left and BYE; wait for their acknowledgement at most 2.5 s."""
        self.begin_close(reason)
        self.wait_closed()

    def describe_undelivered(self) -> str:
        """Say how many records were not delivered, and why; empty if all were. After `close`.

        The number is that of `pending` in the statistics, with the record that says the end; where
        that one alone is missing nothing is.
        """
        session = self.session
        count = session.source.pending
        if count <= self._has_said_bye:
            return ""
        kept = f"; they are kept in {self.spill.directory}" if self.spill is not None else ""
        where, why = self.route.endpoint, f"the aggregator refused: {session.refused!a}"
        if session.phase is not SessionPhase.REFUSED:
            where = ", ".join([where, *self.route.others])
            why = self.route.describe(time.monotonic())
        return f"{count} pending records were not delivered to {where}: {why}{kept}"

    def run(self) -> None:
        """Own the connection from here to the last acknowledgement."""
        connection = self._connection
        if connection is None:
            return
        try:
            self._claim_orphaned()
            while not self._closing.is_set():
                self._round(connection)
                self.route.look(time.monotonic())
                self._look_for_hang()
                if self._status is not None:
                    self._status.post(time.monotonic())
            self._drain(connection)
        except Exception as error:  # noqa: BLE001 - nothing may reach the training process
            self._faults.note("sender stopped", repr(error))
        finally:
            with self._faults.noting("sender stopped"):
                connection.close()
            self._close_files()

    def _look_for_hang(self) -> None:
        if self._hang is None:
            return
        with self._faults.noting("stack"):
            event = self._hang.look(self._trainer, time.monotonic())
            if event is not None:
                self.session.source.append(event, time.time_ns())

    def _claim_orphaned(self) -> None:
        if self.spill is not None:
            spill = self.spill
            orphans = claim_orphans(spill.directory, spill.hello, self._faults)
            self.orphaned = OrphanedSessions(orphans)
            self._driver.others = self.orphaned

    def _close_files(self) -> None:
        if self.spill is not None:
            self.spill.close(finished=not self.session.source.pending)
        if self.orphaned is not None:
            self.orphaned.close()

    def _drain(self, connection: Connection) -> None:
        """Wait for the device, then say BYE and wait for its acknowledgement; `CLOSE_S` in all."""
        self._driver.close(time.monotonic())
        if self.session.phase is SessionPhase.GREETING:
            self.route.look_at_last(time.monotonic)
        while self.queue and self._driver.may_produce(time.monotonic()):
            self._round(connection)
        if self.queue:
            self._faults.note("dropped", "at the end the device had not delivered its numbers")
        self.session.source.skip(self.queue.drop_all())  # nothing comes after BYE
        if self._bye is not None:
            self._has_said_bye = self.session.source.append(self._bye, time.time_ns())
        while not self._driver.is_closed(time.monotonic()):
            self._round(connection)

    def _round(self, connection: Connection) -> None:
        self._is_pausing = self._may_pause(connection)
        if self._is_pausing:
            self._pause.clear()
            if not self.queue and not self._closing.is_set():  # asked again: `put` may have been
                self._pause.wait(PAUSE_S)
        if connection.wait(0 if self._is_pausing else ROUND_MS):
            self._receive(connection)
        self._is_pausing = False
        began_s = time.thread_time()
        count = self._gather()
        if self.spill is not None:
            self.spill.flush()
        self._driver.send(connection.send, time.monotonic())
        if count:
            each_s = (time.thread_time() - began_s) / count
            self.record_s += (each_s - self.record_s) / (8 if self.record_s else 1)
        self._follow_route(connection)

    def _may_pause(self, connection: Connection) -> bool:
        """Tell whether nothing is due: all is acknowledged, or nobody was there for a while."""
        if self.queue or self._closing.is_set():
            return False
        if not connection.is_connected:
            return self.route.is_quiet(time.monotonic())
        return self.session.is_over and (self.orphaned is None or self.orphaned.are_over)

    def _follow_route(self, connection: Connection) -> None:
        """Go on with the next endpoint if the one in use does not answer."""
        now_s = time.monotonic()
        if not self.route.is_to_leave(now_s, is_connected=connection.is_connected):
            return
        # A refusal is an answer: asking again brings the same.
        if self.session.phase is SessionPhase.REFUSED:
            return
        try:
            connection.move((self.route.others or [self.route.endpoint])[0])
        except ValueError as error:
            self._faults.note("endpoint", error)
            self.route.stay(now_s)
            return
        self.route.moved(now_s)
        self._driver.greet_again()

    def _receive(self, connection: Connection) -> None:
        for _ in range(MAX_BATCH):
            message = connection.receive()
            if message is None:
                break
            now_s = time.monotonic()
            try:
                self._driver.receive(decode(message), now_s)
                self.route.answered(now_s)
            except ProtocolError as error:
                self.route.babbled(error)
        self._tell()

    def _tell(self) -> None:
        """Log a refusal, and call `on_alert` for each alert."""
        session = self.session
        if session.phase is SessionPhase.REFUSED and not self._faults.counts["refused"]:
            self._faults.note("refused", f"the aggregator says: {session.refused!a}")
        alerts, session.alerts = session.alerts, []
        for alert in alerts:
            if self._status is not None:
                self._status.alert(alert)
            if self._on_alert is None:
                continue
            try:
                self._on_alert(alert)
            except BaseException as error:  # noqa: BLE001 - the user's code, `sys.exit()` too
                self._faults.note("on_alert", repr(error))

    def _gather(self) -> int:
        """Turn what has arrived from the device into records, in order; return how many."""
        count = 0
        while (taken := self.queue.take()) is not None:
            num_lost, collected = taken
            # Each has a number, so that it is declared lost in its place.
            self.session.source.skip(num_lost)
            self._driver.stepped(collected.step, time.monotonic())
            self._append(collected)
            count += 1
        return count

    def _append(self, collected: Collected) -> None:
        outbox = self.session.source
        try:
            for record in collected.records():
                if not outbox.append(record, collected.time_ns):
                    self._faults.note("oversize", f"a {type(record).__name__} was left out")
                if self._status is not None and isinstance(record, Stats):
                    self._status.record(record, time.monotonic())
            outbox.skip(int(collected.is_lost))
        except Exception as error:  # noqa: BLE001 - costs this record, not the next
            self._faults.note("record", repr(error))
            outbox.skip(1)
