"""Intake: what each message puts into the log, and who is to be answered."""

from __future__ import annotations

from collections.abc import Callable

from gradwatch_server.core.entries import Gap, Opened, Progress, Received
from gradwatch_server.core.sequence import Outcome, SequenceTracker
from gradwatch_server.core.state import State
from gradwatch_server.engine.admission import Admission
from gradwatch_server.engine.batch import Answer, Batch
from gradwatch_server.engine.metrics import EngineMetrics
from gradwatch_server.engine.published import PublishedState
from gradwatch_server.ingest.socket import Ingest, Message
from gradwatch_server.storage.encoding import RECORD_KINDS
from gradwatch_wire import Ack, Beat, Hello
from gradwatch_wire.health import RankState
from gradwatch_wire.session.replayed import as_replayed, is_replayed


class Intake:
    """Checks messages before they are logged. It changes no state but the sequence numbers."""

    def __init__(
        self,
        ingest: Ingest,
        state: State,
        tracker: SequenceTracker,
        published: PublishedState,
        metrics: EngineMetrics,
        boot_id: bytes,
        on_beat: Callable[[Progress], None],
    ) -> None:
        self.peers: dict[bytes, bytes] = {}  # session -> peer that last spoke for it
        self._ingest = ingest
        self._state = state
        self._tracker = tracker
        self._published = published
        self._metrics = metrics
        self._boot_id = boot_id
        self._on_beat = on_beat
        self._admission = Admission(ingest, state, tracker)

    def take(self, message: Message, now_ns: int, batch: Batch) -> None:
        """Add to a batch what a message puts into the log, and the answer to it."""
        if self._admission.may_write(message) and self._dispatch(message, now_ns, batch):
            session = message.envelope.session
            self._published.last_seen[session] = now_ns
            self.peers[session] = message.peer

    def forget(self, session: bytes) -> None:
        """Let a session go that left memory; if it comes back it is not known."""
        self._tracker.forget(session)
        self.peers.pop(session, None)
        self._published.last_seen.pop(session, None)

    def _dispatch(self, message: Message, now_ns: int, batch: Batch) -> bool:
        """Return whether the message shows that its session is alive."""
        session, record = message.envelope.session, message.envelope.record
        if isinstance(record, Hello):
            return self._greet(message, record, now_ns, batch)
        if session not in self._tracker:
            # A new log, or one that lost this session: the client says HELLO at a new boot id.
            self._ingest.reply(message.peer, session, Ack(boot_id=self._boot_id, acked=0))
            return False
        if isinstance(record, Beat):
            self._revive(session, now_ns, batch)
            self._on_beat(Progress(session, record.last_step, record.since_s, record.training))
            batch.answer(session, message.peer)
        elif type(record) in RECORD_KINDS:
            self._check(message, now_ns, batch)
        else:
            why = f"{type(record).__name__} from a client"
            self._ingest.refuse("unexpected", why, message.peer)
            return False
        return True

    def _greet(self, message: Message, hello: Hello, now_ns: int, batch: Batch) -> bool:
        """Open the session if it is new; return False if it was refused."""
        session = message.envelope.session
        if session in self._tracker:
            self._return(session, hello, now_ns, batch)
        elif self._admission.admits(message, hello):
            self._tracker.open(session)
            batch.add(now_ns, Opened(session, hello), message.raw)
        else:
            return False
        batch.answers[session] = Answer(message.peer, welcome=True)
        return True

    def _return(self, session: bytes, hello: Hello, now_ns: int, batch: Batch) -> None:
        """Note in the log that a known session goes on: after silence, or from files from now."""
        known = self._state.sessions.get(session)
        if known is None:
            return
        from_files = is_replayed(hello)
        changed = known.state is RankState.ALIVE and known.is_from_files != from_files
        if known.state is RankState.LOST or changed:
            shown = as_replayed(known.hello) if from_files else known.hello
            batch.add(now_ns, Opened(session, shown))

    def _check(self, message: Message, now_ns: int, batch: Batch) -> None:
        """Log a record if it is the next one of its session, and what is lost before it."""
        envelope = message.envelope
        checked = self._tracker.check(envelope.session, envelope.seq, envelope.low)
        if checked.gap:
            first, last = checked.gap
            self._metrics.lost += last - first + 1
            batch.add(now_ns, Gap(envelope.session, first, last))
        if checked.outcome is Outcome.ACCEPT:
            self._metrics.stored += 1
            self._metrics.stored_bytes += len(message.raw)
            batch.add(now_ns, Received(envelope), message.raw)
        elif checked.outcome is Outcome.DUPLICATE:
            self._published.num_duplicates += 1
        # A rewind asked for is void once the missing record came after all.
        batch.answer(envelope.session, message.peer).rewind = checked.outcome is Outcome.REWIND

    def _revive(self, session: bytes, now_ns: int, batch: Batch) -> None:
        """Note in the log that a session taken for lost is alive after all."""
        known = self._state.sessions.get(session)
        if known is not None and known.state is RankState.LOST:
            batch.add(now_ns, Opened(session, known.hello))
