"""Intake: what each message puts into the log, and who is to be answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gradwatch_server.core.entries import BeatProgress, Entry, Gap, Opened, Received
from gradwatch_server.core.sequence import SequenceResult, SequenceTracker
from gradwatch_server.core.state import State
from gradwatch_server.engine.admission import Admission, AdmissionResult
from gradwatch_server.engine.batch import Batch, Reply
from gradwatch_server.engine.memory import RunMemory
from gradwatch_server.engine.metrics import EngineMetrics
from gradwatch_server.engine.publishing import PublishedState
from gradwatch_server.engine.recovery import Recovery
from gradwatch_server.ingest.inbox import MESSAGE_BYTES, Inbox
from gradwatch_server.ingest.message import Dropped, IngestMessage
from gradwatch_server.storage.encoding import RECORD_KINDS
from gradwatch_server.storage.rows import LogEntry
from gradwatch_server.storage.saved_state import SavedState
from gradwatch_wire import Ack, Beat, Bye, Hello
from gradwatch_wire.health import RankState
from gradwatch_wire.limits import BOOT_ID_BYTES
from gradwatch_wire.session.replayed import as_replayed, is_replayed
from gradwatch_wire.session.timing import SILENCE_S

NO_BOOT: Final = bytes(BOOT_ID_BYTES)
"""The boot id of no aggregator."""

SILENT_NS: Final = round(1e9 * SILENCE_S)
"""A session that was silent this long may be taken up by another peer."""

REWIND_NS: Final = 1_000_000_000
"""Least time between two rewinds of a session: more of them would double its load."""

FREED_AFTER_S: Final = 5.0
"""Time without a record after which a session that does not live keeps nothing of the queue."""

ASK_NS: Final = 500_000_000
"""Least time between two checks whether the peer of a session is connected."""


class Intake:
    """Checks messages before they are logged. It changes no state but the sequence numbers."""

    def __init__(
        self,
        ingest: Inbox,
        state: State,
        tracker: SequenceTracker,
        published: PublishedState,
        metrics: EngineMetrics,
        boot_id: bytes,
        on_beat: Callable[[BeatProgress], None],
        admission: Admission,
        memory: RunMemory,
        recovery: Recovery,
        saved: SavedState,
    ) -> None:
        self._saved = saved
        self._recovery = recovery
        self._run_of: dict[bytes, str] = {}  # sessions opened since the start
        self.peers: dict[bytes, bytes] = {}  # session -> peer that speaks for it
        self._ingest = ingest
        self._credit = ingest.credit
        self._state = state
        self._tracker = tracker
        self._published = published
        self._metrics = metrics
        self._boot_id = boot_id
        self._on_beat = on_beat
        self._memory = memory
        self._admission = admission
        self.waiting = admission.waiting
        """HELLOs that wait for the next rounds."""
        self._asked_ns: dict[bytes, int] = {}  # session -> when its peer was looked for
        self._missing: dict[bytes, Dropped] = {}  # session -> a record that is to come again
        self._rewound_ns: dict[bytes, int] = {}  # session -> when it was asked to

    def next_round(self, now_ns: int, batch: Batch) -> list[bytes]:
        """Begin a batch with what leaves memory, and with the HELLOs that waited for that.

        Return the peers that these came from.
        """
        for run, body in self._memory.begin_round(self._admission.grown):
            batch.add(run, now_ns, body)
        waited = []
        for later_ns, message in enumerate(self._admission.next_round()):
            # Each at a time of its own: after a restart runs are in the order of their beginnings.
            self.accept(message, now_ns + later_ns, batch)
            waited.append(message.peer)
        gone = self._memory.gone()
        batch.lines[:0] = [LogEntry(run, Entry(now_ns, body)) for run, body in gone]
        return waited

    def ask_again(self, now_ns: int, batch: Batch) -> None:
        """Ask sessions to send again what is missing, or was dropped, once there is room for it."""
        for session, dropped in self._ingest.dropped.items():
            self._miss(session, dropped)
        self._ingest.dropped.clear()
        for session, missing in list(self._missing.items()):
            if session not in self._tracker or self._tracker.accepted(session) >= missing.seq:
                del self._missing[session]
            elif self._may_ask(session, missing.peer, now_ns):
                self._rewound_ns[session] = now_ns
                batch.answer(session, self.peers.get(session, missing.peer)).rewind = True
                del self._missing[session]

    def _miss(self, session: bytes, missing: Dropped) -> None:
        known = self._missing.get(session)
        if known is None or missing.seq > known.seq:
            self._missing[session] = missing

    def _may_ask(self, session: bytes, peer: bytes, now_ns: int) -> bool:
        since_ns = now_ns - self._rewound_ns.get(session, -REWIND_NS)
        return since_ns >= REWIND_NS and self._ingest.has_room(peer)

    def accept(self, message: IngestMessage, now_ns: int, batch: Batch) -> None:
        """Add to a batch what a message puts into the log, and the answer to it."""
        session = message.envelope.session
        if not self._admission.may_write(message) or not self._is_of_its_peer(message, now_ns):
            return
        if type(message.envelope.record) in RECORD_KINDS:
            self._credit.consume(session, len(message.raw) + MESSAGE_BYTES, now_ns / 1e9)
        if session in self._memory.leaving:
            self._turn_away(message)
        elif self._dispatch(message, now_ns, batch):
            self._published.last_seen[session] = now_ns
            self.peers[session] = message.peer

    def serve_waiting(self, now_ns: int, batch: Batch) -> None:
        """Grant what is free to sessions that wait; each is answered."""
        for session in self._credit.serve(now_ns / 1e9):
            batch.answer(session, self._credit.peer_of(session))

    def free_credit(self, now_ns: int, batch: Batch) -> None:
        """Free what was granted to sessions that ended or are lost, or are idle while others wait.

        A lost one says HELLO again.
        """
        for session in self._credit.idle(now_ns / 1e9 - FREED_AFTER_S):
            known = self._state.sessions.get(session)
            if known is None or known.state is not RankState.ALIVE:
                self._credit.forget(session)
        for session in self._credit.reclaim(now_ns / 1e9, self._ingest.is_heard):
            batch.answer(session, self._credit.peer_of(session))

    def forget(self, session: bytes) -> None:
        """Let a session go that left memory; if it comes back it is not known."""
        self._tracker.forget(session)
        self._credit.forget(session)
        self._run_of.pop(session, None)
        self.peers.pop(session, None)
        self._asked_ns.pop(session, None)
        self._missing.pop(session, None)
        self._rewound_ns.pop(session, None)
        self._published.last_seen.pop(session, None)

    def _turn_away(self, message: IngestMessage) -> None:
        """Answer for a session that leaves memory in this round: it may begin anew in the next."""
        if isinstance(message.envelope.record, Hello):
            self._admission.wait(message)
        else:
            self._say_unknown(message)

    def _say_unknown(self, message: IngestMessage) -> None:
        """Make the client say HELLO: it does at an ACK of another boot id than it knows."""
        session = message.envelope.session
        self._ingest.reply(message.peer, session, Ack(boot_id=NO_BOOT, acked=0))

    def _is_of_its_peer(self, message: IngestMessage, now_ns: int) -> bool:
        """Tell whether a message comes from the peer that speaks for its session.

        Another one may once that is gone or silent: so a client connects anew, and what it left on
        the disk is sent by another process.
        """
        session = message.envelope.session
        peer = self.peers.get(session)
        if peer is None or peer == message.peer:
            return True
        if now_ns - self._published.last_seen.get(session, 0) > SILENT_NS:
            return True
        known = self._state.sessions.get(session)
        if now_ns - self._asked_ns.get(session, 0) > ASK_NS and known is not None:
            self._asked_ns[session] = now_ns
            again = Ack(boot_id=self._boot_id, acked=known.acked)  # it has had this one
            if not self._ingest.reply(peer, session, again):
                return True
        self._ingest.refuse("another peer", "a session that a connected peer speaks for")
        return False

    def _dispatch(self, message: IngestMessage, now_ns: int, batch: Batch) -> bool:
        """Return whether the message shows that its session is alive."""
        session, record = message.envelope.session, message.envelope.record
        if isinstance(record, Hello):
            return self._greet(message, record, now_ns, batch)
        if session not in self._tracker or session not in self._credit:
            self._say_unknown(message)  # a new log or start, or it was lost, or left memory
            return False
        if isinstance(record, Beat):
            self._credit.beat(session, record.shrink, record.waiting_bytes, now_ns / 1e9)
            self._revive(session, now_ns, batch)
            self._on_beat(BeatProgress(session, record.last_step, record.since_s, record.training))
            batch.answer(session, message.peer)
        elif type(record) in RECORD_KINDS:
            self._check(message, now_ns, batch)
        else:
            reason = f"{type(record).__name__} from a client"
            self._ingest.refuse("unexpected", reason, message.peer)
            return False
        return True

    def _greet(self, message: IngestMessage, hello: Hello, now_ns: int, batch: Batch) -> bool:
        """Open the session if it is new; return False if it is refused, or waits."""
        session = message.envelope.session
        self._recovery.ensure(hello.run, batch)
        if session in self._tracker:
            self._tracker.open(session)
            if message.client is not None:
                self._memory.claim(self._find_run(session), message.client.name)
            self._return(session, hello, now_ns, batch)
        elif self._admission.judge(message, hello, now_ns) is AdmissionResult.ADMITTED:
            self._tracker.open(session)
            self._begin(hello.run, now_ns, batch)
            self._run_of[session] = hello.run
            batch.add(hello.run, now_ns, Opened(session, hello), message.raw)
        else:
            return False
        batch.answers[session] = Reply(message.peer, welcome=True)
        self._open_credit(message, hello, now_ns, batch.answers[session])
        self._ingest.join(message.peer, hello.run)
        self._missing.pop(session, None)  # WELCOME says from where to go on
        return True

    def _open_credit(
        self, message: IngestMessage, hello: Hello, now_ns: int, answer: Reply
    ) -> None:
        session, peer, now_s = message.envelope.session, message.peer, now_ns / 1e9
        before = self.peers.get(session)
        if before not in (None, peer) and set(self._credit.sessions_of(before)) <= {session}:
            self._ingest.discard(before)
        if hello.credit:
            self._credit.open(session, peer, now_s)
        else:
            limit = self._ingest.max_in_flight_bytes
            answer.max_in_flight_bytes = self._credit.open_fixed(session, peer, limit, now_s)

    def _begin(self, name: str, now_ns: int, batch: Batch) -> None:
        """Begin the log of a run that is not in memory, or leaves it in this round."""
        run = self._state.runs.get(name)
        leaves = run is not None and self._memory.leaves(run)
        if name in batch.begun or (run is not None and not leaves):
            return
        attempts = run.attempts[-1].number if run else self._saved.forgotten(name).attempts
        batch.begun.add(name)
        batch.add(name, now_ns, self._state.beginning(name, attempts))

    def _return(self, session: bytes, hello: Hello, now_ns: int, batch: Batch) -> None:
        """Note in the log that a known session goes on: after silence, or from files from now."""
        known = self._state.sessions.get(session)
        if known is None:
            return
        from_files = is_replayed(hello)
        changed = known.state is RankState.ALIVE and known.is_from_files != from_files
        if known.state is RankState.LOST or changed:
            shown = as_replayed(known.hello) if from_files else known.hello
            batch.add(known.hello.run, now_ns, Opened(session, shown))

    def _check(self, message: IngestMessage, now_ns: int, batch: Batch) -> None:
        """Log a record if it is the next one of its session, and what is lost before it."""
        envelope = message.envelope
        if self._tracker.is_doubtful(envelope.session, envelope.seq, envelope.low):
            self._say_unknown(message)
            return
        run = self._find_run(envelope.session)
        checked = self._tracker.check(envelope.session, envelope.seq, envelope.low)
        if checked.gap:
            first, last = checked.gap
            self._metrics.lost += last - first + 1
            batch.add(run, now_ns, Gap(envelope.session, first, last))
        if checked.outcome is SequenceResult.ACCEPT:
            self._metrics.stored += 1
            self._metrics.stored_bytes += len(message.raw)
            batch.add(run, now_ns, Received(envelope), message.raw)
            if type(envelope.record) is Bye:
                self._credit.forget(envelope.session)
        elif checked.outcome is SequenceResult.DUPLICATE:
            self._published.num_duplicates += 1
        else:  # what was missing first comes first when it is sent again
            missing = Dropped(message.peer, envelope.seq)
            self._missing.setdefault(envelope.session, missing)
        batch.answer(envelope.session, message.peer)

    def _find_run(self, session: bytes) -> str:
        return self._run_of.get(session) or self._state.sessions[session].hello.run

    def _revive(self, session: bytes, now_ns: int, batch: Batch) -> None:
        """Note in the log that a session taken for lost is alive after all."""
        known = self._state.sessions.get(session)
        if known is not None and known.state is RankState.LOST:
            batch.add(known.hello.run, now_ns, Opened(session, known.hello))
