"""A session against the aggregator's sequence tracker, through faults in any order.

Whatever happens on the way, in the end every record is stored once or declared lost, and what is
stored can be read.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gradwatch_server.core.sequence import Outcome, SequenceTracker
from gradwatch_wire import (
    Ack,
    Column,
    Envelope,
    Hello,
    Manifest,
    Stats,
    Welcome,
    decode,
    encode,
)
from gradwatch_wire.session.outbox import Outbox, Overflow
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.session import Session
from gradwatch_wire.session.timing import ACK_TIMEOUT_S

SESSION = b"s" * 16


class Server:
    """The aggregator as far as the protocol goes: a log, and a tracker made of it at each start."""

    def __init__(self) -> None:
        self.log: list[Envelope] = []
        self.gaps: list[tuple[int, int]] = []
        self.known = False
        self.start()

    def start(self) -> None:
        """Start with what was committed."""
        self.boot_id = os.urandom(16)
        acked = max([e.seq for e in self.log] + [last for _, last in self.gaps], default=0)
        self.tracker = SequenceTracker({SESSION: acked} if self.known else {})

    def take(self, frames: list[bytes]) -> list[bytes]:
        """Take in one message, commit, and answer."""
        envelope = decode(frames)
        if isinstance(envelope.record, Hello):
            self.known = True
            self.tracker.open(SESSION)
            return self._answer(Welcome(boot_id=self.boot_id, acked=self.tracker.accepted(SESSION)))
        if SESSION not in self.tracker:
            return self._answer(Ack(boot_id=self.boot_id, acked=0))
        checked = self.tracker.check(SESSION, envelope.seq, envelope.low)
        if checked.gap is not None:
            self.gaps.append(checked.gap)
        if checked.outcome is Outcome.ACCEPT:
            self.log.append(envelope)
        rewind = checked.outcome is Outcome.REWIND
        acked = self.tracker.accepted(SESSION)
        return self._answer(Ack(boot_id=self.boot_id, acked=acked, rewind=rewind))

    def _answer(self, record: Any) -> list[bytes]:
        return encode(Envelope(session=SESSION, record=record))


class Machine(RuleBasedStateMachine):
    """One client, one aggregator, and a connection that loses whatever is on it when it breaks."""

    max_bytes = 6_000

    def __init__(self) -> None:
        super().__init__()
        hello = Hello(run="test", rank=0, world=1)
        self.outbox = Outbox(self.max_bytes, self.overflow())
        self.client = Session(SESSION, hello, self.outbox)
        self.server = Server()
        self.connected = True
        self.up: deque[list[bytes]] = deque()
        self.down: deque[list[bytes]] = deque()
        self.now_s = 0.0
        self.num_manifests = 0
        self.num_stats = 0
        self.num_skipped = 0

    def overflow(self) -> Overflow | None:
        return None

    # What the training process does.

    @rule(count=st.integers(1, 300), padding=st.sampled_from([0, 0, 0, 300, 1500]))
    def produce(self, count: int, padding: int) -> None:
        if not self.num_manifests:
            self.declare()
        for _ in range(count if not padding else count % 8 + 1):
            self.num_stats += 1
            labels = {"why": "x" * padding}
            record = Stats(manifest_id=self.num_manifests, step=self.num_stats, labels=labels)
            self.outbox.append(record, 0)

    @rule(count=st.sampled_from([1, 1, 2, 40]))
    def declare(self, count: int = 1) -> None:
        for _ in range(count):
            self.num_manifests += 1
            record = Manifest(
                manifest_id=self.num_manifests,
                names=(f"layer {self.num_manifests}",),
                numel=Column.pack("<u8", [1]),
                dtypes=("float32",),
            )
            self.outbox.append(record, 0)

    @rule(count=st.integers(1, 3))
    def drop(self, count: int) -> None:
        self.num_skipped += count
        self.outbox.skip(count)

    @rule(seconds=st.sampled_from([0.02, 0.5, ACK_TIMEOUT_S + 0.1]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    # What the connection does. Messages of one connection stay in order.

    @rule(count=st.sampled_from([1, 3, 20, 1000]))
    def client_sends(self, count: int) -> None:
        greeting = self.client.due(self.now_s)
        if greeting is not None and self.connected:
            self.client.greeted(self.now_s)
            self.up.append(greeting)
        for _ in range(count):
            frames = self.client.peek()
            if frames is None or not self.connected:
                return
            self.up.append(frames)
            self.client.sent()

    @precondition(lambda self: self.up)
    @rule(count=st.sampled_from([1, 3, 20, 1000]))
    def server_takes(self, count: int) -> None:
        for _ in range(min(count, len(self.up))):
            self.down.append(self.server.take(self.up.popleft()))

    @precondition(lambda self: self.down)
    @rule(count=st.sampled_from([1, 3, 20, 1000]))
    def client_hears(self, count: int) -> None:
        for _ in range(min(count, len(self.down))):
            self.client.receive(decode(self.down.popleft()), self.now_s)

    @rule(count=st.sampled_from([1, 20, 1000]))
    def all_is_well(self, count: int) -> None:
        self.connected = True
        self.client_sends(count)
        self.server_takes(count)
        self.client_hears(count)

    @precondition(lambda self: self.connected)
    @rule()
    def connection_breaks(self) -> None:
        self.connected = False
        self.up.clear()
        self.down.clear()

    @precondition(lambda self: not self.connected)
    @rule()
    def connection_is_back(self) -> None:
        self.connected = True

    @rule()
    def connection_blinks(self) -> None:
        self.connection_breaks()
        self.connected = True

    @rule()
    def server_restarts(self) -> None:
        self.connection_blinks()
        self.server.start()

    # What holds at any time.

    @invariant()
    def numbers_are_stored_once_and_in_order(self) -> None:
        stored = [e.seq for e in self.server.log]
        assert stored == sorted(set(stored))
        lost = [seq for first, last in self.server.gaps for seq in range(first, last + 1)]
        assert len(lost) == len(set(lost))
        assert not set(lost) & set(stored)

    @invariant()
    def records_are_stored_once_and_in_order(self) -> None:
        steps = [e.record.step for e in self.server.log if isinstance(e.record, Stats)]
        assert steps == sorted(set(steps))

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.outbox.buffer.size_bytes <= self.max_bytes * 1.5

    # How it ends: the trouble is over, and there is time.

    def teardown(self) -> None:
        self.declare()  # as BYE does, it tells of numbers given up before it
        for _ in range(400):
            self.now_s += 0.3
            self.all_is_well(1000)
            if self.client.is_drained and not self.up and not self.down:
                break
        self.numbers_are_stored_once_and_in_order()
        self.records_are_stored_once_and_in_order()
        self.everything_is_stored_or_declared_lost()
        self.what_is_stored_can_be_read()

    def everything_is_stored_or_declared_lost(self) -> None:
        assert self.client.is_drained
        produced = self.num_manifests + self.num_stats + self.num_skipped
        lost = sum(last - first + 1 for first, last in self.server.gaps)
        assert produced == len(self.server.log) + lost
        assert lost <= self.client.counters["evicted"] + self.num_skipped
        manifests = [e.record for e in self.server.log if isinstance(e.record, Manifest)]
        assert len(manifests) == len({manifest.manifest_id for manifest in manifests})

    def what_is_stored_can_be_read(self) -> None:
        declared = set()
        for envelope in self.server.log:
            if isinstance(envelope.record, Manifest):
                declared.add(envelope.record.manifest_id)
            elif isinstance(envelope.record, Stats):
                assert envelope.record.manifest_id in declared


class Everything:
    """Keeps records until they are acknowledged, however many there are."""

    def __init__(self) -> None:
        self.items: list[BufferedRecord] = []

    def add(self, item: BufferedRecord) -> None:
        self.items.append(item)

    def find(self, seq: int) -> BufferedRecord | None:
        return next((item for item in self.items if item.seq >= seq), None)

    def release(self, acked: int) -> None:
        self.items = [item for item in self.items if item.seq > acked]


class SpillingMachine(Machine):
    """The same, with a place for what the send buffer cannot hold."""

    def overflow(self) -> Overflow | None:
        return Everything()

    def everything_is_stored_or_declared_lost(self) -> None:
        super().everything_is_stored_or_declared_lost()
        lost = sum(last - first + 1 for first, last in self.server.gaps)
        assert lost == self.num_skipped


TestSession = pytest.mark.slow(Machine.TestCase)
TestSession.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestSpilling = pytest.mark.slow(SpillingMachine.TestCase)
TestSpilling.settings = settings(max_examples=75, stateful_step_count=30, deadline=None)
