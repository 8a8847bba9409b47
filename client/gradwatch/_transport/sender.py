"""The background thread: owns the socket, turns collections into records, sends and receives.

The training thread only appends to a deque. The thread wakes on its own clock: waking it from
the training thread would cost more than the append.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import zmq

from gradwatch._faults import Faults
from gradwatch._transport.collection_queue import Collected, CollectionQueue
from gradwatch._transport.handshakes import Handshakes
from gradwatch._transport.keys import use_key
from gradwatch._transport.orphan_files import claim_orphans
from gradwatch._transport.spill import Spill
from gradwatch_wire import Bye, Json, ProtocolError, decode
from gradwatch_wire.keyfile import ClientKey
from gradwatch_wire.session.driver import SessionDriver
from gradwatch_wire.session.orphaned_sessions import OrphanedSessions
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Phase, Session
from gradwatch_wire.session.timing import CLOSE_S, MAX_BATCH, ROUND_MS

# Why each value: docs/protocol.md.
_OPTIONS: Final = {
    zmq.LINGER: 0,
    zmq.IMMEDIATE: 1,
    zmq.SNDHWM: 100,
    zmq.RCVHWM: 200,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 3_000,
    zmq.CONNECT_TIMEOUT: 3_000,
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 6_000,
    zmq.HEARTBEAT_TTL: 6_000,
}


class Sender(threading.Thread):
    """Runs until `close`, and no longer than 2 s after it."""

    def __init__(
        self,
        session: Session[Outbox],
        endpoint: str,
        faults: Faults,
        on_alert: Callable[[dict[str, Json]], object] | None,
        key: ClientKey | None = None,
        spill: Spill | None = None,
    ) -> None:
        super().__init__(name="gradwatch-sender", daemon=True)
        self.session = session
        self.queue = CollectionQueue()
        self.spill = spill
        self.orphaned: OrphanedSessions | None = None
        self._endpoint = endpoint
        self._faults = faults
        self._on_alert = on_alert
        self._key = key
        self._driver = SessionDriver(session, time.monotonic())
        self._bye: Bye | None = None
        self._has_said_bye = False
        self._closing = threading.Event()

    def put(self, collected: Collected) -> None:
        """Hand over a collection; called by the training thread, takes about a microsecond."""
        if not self.queue.put(collected):
            self._faults.note("dropped", "the device or the sender does not keep up")

    def close(self, reason: str) -> None:
        """Send what is left and BYE; wait for their acknowledgement at most 2.5 s."""
        self._bye = Bye(reason=reason)
        self._closing.set()
        if threading.current_thread() is not self:  # it is when on_alert closes the watch
            self.join(CLOSE_S + 0.5)

    def describe_undelivered(self) -> str:
        """Say how many records were not delivered, and why; empty if all were. After `close`."""
        session = self.session
        count = session.source.pending - self._has_said_bye
        if count <= 0:
            return ""
        why = {
            Phase.GREETING: "no aggregator answered; start one there (gradwatch serve), or set "
            "attach(endpoint=...) or GRADWATCH_ENDPOINT",
            Phase.REFUSED: f"the aggregator refused: {session.refused!a}",
            Phase.OPEN: "the aggregator stopped answering",
        }[session.phase]
        kept = f"; they are kept in {self.spill.directory}" if self.spill is not None else ""
        return f"{count} records were not delivered to {self._endpoint}: {why}{kept}"

    def run(self) -> None:
        """Own the socket from the first connection to the last acknowledgement."""
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        handshakes = Handshakes(socket, self._endpoint)
        try:
            self._connect(socket)
            self._claim_orphaned()
            while not self._closing.is_set():
                self._round(socket)
                if handshakes.check(time.monotonic()):
                    self._faults.note("not let in", self._whose_key())
            self._drain(socket)
        except Exception as error:  # noqa: BLE001 - nothing may reach the training process
            self._faults.note("sender stopped", repr(error))
        finally:
            handshakes.close()
            socket.close(linger=0)
            context.term()
            self._close_files()

    def _connect(self, socket: zmq.Socket[bytes]) -> None:
        for option, value in _OPTIONS.items():
            socket.setsockopt(option, value)
        # Only where it is asked for: with it a name may resolve to where nobody listens.
        socket.setsockopt(zmq.IPV6, int("[" in self._endpoint))
        if self._key is not None:
            use_key(socket, self._key)
        socket.connect(self._endpoint)

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

    def _whose_key(self) -> str:
        key = "this process has none" if self._key is None else "this process's is not known there"
        return f"the aggregator at {self._endpoint} asks for another key (GRADWATCH_KEYS); {key}"

    def _drain(self, socket: zmq.Socket[bytes]) -> None:
        """Wait for the device, then say BYE and wait for its acknowledgement; `CLOSE_S` in all."""
        self._driver.close(time.monotonic())
        while self.queue and self._driver.may_produce(time.monotonic()):
            self._round(socket)
        if self.queue:
            self._faults.note("dropped", "at the end the device had not delivered its numbers")
        self.session.source.skip(self.queue.drop_all())  # nothing comes after BYE
        if self._bye is not None:
            self._has_said_bye = self.session.source.append(self._bye, time.time_ns())
        while not self._driver.is_closed(time.monotonic()):
            self._round(socket)

    def _round(self, socket: zmq.Socket[bytes]) -> None:
        if socket.poll(ROUND_MS):
            self._receive(socket)
        self._gather()
        if self.spill is not None:
            self.spill.flush()
        self._driver.send(lambda frames: _send(socket, frames), time.monotonic())

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        for _ in range(MAX_BATCH):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                self._driver.receive(decode(frames), time.monotonic())
            except ProtocolError as error:
                self._faults.note("answer not understood", error)
        self._tell()

    def _tell(self) -> None:
        """Pass on what the aggregator said to the person and to the training script."""
        session = self.session
        if session.phase is Phase.REFUSED and not self._faults.counts["refused"]:
            self._faults.note("refused", f"the aggregator says: {session.refused!a}")
        alerts, session.alerts = session.alerts, []
        if self._on_alert is None:
            return
        for alert in alerts:
            try:
                self._on_alert(alert)
            except BaseException as error:  # noqa: BLE001 - the user's code, `sys.exit()` too
                self._faults.note("on_alert", repr(error))

    def _gather(self) -> None:
        """Turn what has arrived from the device into records, in order."""
        while (taken := self.queue.take()) is not None:
            num_lost, collected = taken
            # Each has a number, so that it is declared lost in its place.
            self.session.source.skip(num_lost)
            self._driver.stepped(collected.step, time.monotonic())
            self._append(collected)

    def _append(self, collected: Collected) -> None:
        outbox = self.session.source
        try:
            for record in collected.records():
                if not outbox.append(record, collected.time_ns):
                    self._faults.note("oversize", f"a {type(record).__name__} was left out")
        except Exception as error:  # noqa: BLE001 - costs this record, not the next
            self._faults.note("record", repr(error))
            outbox.skip(1)


def _send(socket: zmq.Socket[bytes], frames: list[bytes]) -> bool:
    try:
        socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True
