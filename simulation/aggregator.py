"""The real engine over a simulated socket, disk and clock: stepped, killed and started again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from random import Random
from typing import Final, Protocol

from gradwatch_server.budgets import Budgets, BudgetUse
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Entry, Forgotten
from gradwatch_server.core.run import Run
from gradwatch_server.engine.alert_commands import Acknowledge, AddSilence, RemoveSilence
from gradwatch_server.engine.engine import Engine
from gradwatch_server.errors import GradwatchError
from gradwatch_server.ingest.credit import Credit
from gradwatch_server.ingest.fair_queue import FairQueue
from gradwatch_server.ingest.inbox import WORK_S, Inbox
from gradwatch_server.ingest.message import IngestMessage, PackedRecord
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.rows import StorageError, StorageFault
from gradwatch_wire import Ack, Envelope, Record, Welcome, decode
from gradwatch_wire.codec import join
from simulation.clock import Clock
from simulation.disk import Disk, SimulatedStore
from simulation.greedy import AFTER_A_ROUND, small_budgets
from simulation.invariants import Gone, InvariantChecker, Violation, require
from simulation.network import Network
from simulation.scenario import SECOND_NS, Scenario

WINDOW_STEPS: Final = 16
COST_S: Final = 0.002
"""What each thing costs that is done with a message."""


class Killed(BaseException):
    """Raised where the aggregator is killed, in the middle of whatever it did."""


class World(Protocol):
    """The surroundings of the aggregator."""

    scenario: Scenario
    batch: int
    clock: Clock
    network: Network
    invariants: InvariantChecker

    def point(self, where: str) -> None:
        """Pass a point at which the aggregator may be killed, which raises `Killed`."""

    def fails(self, word: str) -> bool:
        """Tell whether a statement fails on the disk; slow ones let time pass first."""

    def pass_by(self, seconds: float) -> None:
        """Let the others go on for a while, while the aggregator waits."""

    def note(self, *what: object) -> None:
        """Write a line of the trace."""


class SimulatedInbox(Inbox):
    """The port of the aggregator, on the simulated network."""

    endpoint = "simulated"

    def __init__(self, world: World) -> None:
        super().__init__(BudgetUse())
        of_peer = world.scenario.queue_bytes
        self._queue = FairQueue(3 * of_peer, of_peer)
        self.credit = Credit(2 * of_peer)
        self._seconds = lambda: 0.0
        self._world = world
        self._batch_messages = world.batch

    def receive(
        self,
        timeout_ms: int,
        work_s: float = WORK_S,  # noqa: ARG002 - of how long real writes take
    ) -> Iterator[IngestMessage]:
        """Yield what has arrived, up to a batch."""
        for message in super().receive(timeout_ms):
            yield message
            self._world.point("receive")

    def _read(self, timeout_ms: int) -> None:  # noqa: ARG002 - time passes elsewhere
        world = self._world
        for _ in range(world.batch):
            found = world.network.receive(world.clock.now_s)
            if found is None:
                return
            peer, message = found
            self._put(peer, (None, message), world.clock.now_s)

    def charge(self, peer: bytes, seconds: float, messages: int = 1) -> None:  # noqa: ARG002 - no clock has a say
        super().charge(peer, COST_S)

    def wake(self) -> None:
        """Nothing waits."""

    def drain(self, seconds: float, stopping: threading.Event) -> None:
        """Read what is there, and let the world go on."""
        self._read(0)
        stopping.wait(seconds)

    def reply(self, peer: bytes, session: bytes, record: Record) -> bool:
        """Send an answer; what it promises is checked at once."""
        world = self._world
        world.point("reply")
        if isinstance(record, (Ack, Welcome)):
            world.invariants.acknowledged(session, record.acked)
        return world.network.reply(
            peer, Envelope(session=session, record=record), world.clock.now_s
        )

    def refuse(self, kind: str, why: str, peer: bytes | None = None) -> None:  # noqa: ARG002
        """Count a message that is not taken; nobody is throttled, for nobody sends nonsense."""
        self._world.note("refused:", why)
        self.refused[kind] += 1

    def forward(self, peer: bytes, session: bytes, packed: PackedRecord) -> bool:
        """Send an answer that is packed already."""
        envelope = decode(join(packed.kind, session, 0, 0, 0, packed.body))
        return self.reply(peer, session, envelope.record)

    def close(self) -> None:
        """Nothing is open."""


class Stop(threading.Event):
    """The engine's stop event. Waiting for it lets the world go on."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        """Let the time pass."""
        self._world.pass_by(timeout or 0.0)
        self._world.point("wait")
        return self.is_set()


class Aggregator:
    """A data directory, and the process that serves it, if one does."""

    def __init__(self, world: World, engine: type[Engine]) -> None:
        self.engine: Engine | None = None
        self.num_boots = 0
        self._num_duplicates = self._num_rounds = 0
        self._checked = (0, 0)
        self._world = world
        self._class = engine
        self._budgets = small_budgets() if world.scenario.greedy else Budgets()
        self.budget_use = BudgetUse(self._budgets)
        self._gone: dict[tuple[str, int], Gone] = {}
        world.invariants.sessions_of = lambda *own: self._gone.pop(own)
        self.disk = Disk(self._before, self._after)
        self.store = SimulatedStore(self.disk, world.clock.boot(), world.invariants.committed)

    def _before(self, word: str) -> None:
        if self.engine is not None:
            self._world.invariants.check_published(self.engine.published.views)
        self._world.point(f"before {word}")
        if self._world.fails(word):
            raise StorageError("database or disk is full", StorageFault.FULL)

    def _after(self, word: str) -> None:
        if word == "COMMIT":
            self.store.committed()
        self._world.point(f"after {word}")

    def _watch_forgetting(self, engine: Engine) -> None:
        """Look at what leaves memory before it is gone: it is committed after that."""
        apply = engine._applier.apply

        def look_and_apply(name: str, entry: Entry, number: int) -> list[Alert]:
            if isinstance(entry.body, Forgotten):
                attempts = entry.body.attempts
                self._gone[name, attempts] = _gone(engine._state.runs[name], attempts)
            return apply(name, entry, number)

        engine._applier.apply = look_and_apply  # type: ignore[method-assign]  # to look at it

    def _fail(self) -> None:
        raise Violation("the engine fails at nothing")

    def boot(self) -> bool:
        """Start; return whether it came up."""
        world = self._world
        clock = world.clock.boot()
        self.num_boots += 1
        self.budget_use = BudgetUse(self._budgets)
        try:
            self.store = SimulatedStore(self.disk, clock, world.invariants.committed)
            engine = self._class(
                self.store,
                SimulatedInbox(world),
                Rules(),
                clock=clock,
                window_steps=WINDOW_STEPS,
                session_timeout_s=world.scenario.session_timeout_s,
                on_alerts=lambda: None,
                on_failure=self._fail,
                retention=RetentionPolicy(
                    log_max_age_s=world.scenario.log_age_s, checkpoint_s=world.scenario.checkpoint_s
                ),
                budget_use=self.budget_use,
                boot_id=self.num_boots.to_bytes(16, "big"),
                stopping=Stop(world),
            )
        except Killed:
            self.die()
            return False
        except GradwatchError as error:
            world.note("does not start:", error)
            self.disk.rollback()
            return False
        self.engine = engine
        self._watch_forgetting(engine)
        world.note("aggregator starts,", len(world.invariants.entries), "entries")
        return True

    def step(self) -> None:
        if self.engine is None:
            return
        self._num_rounds += 1
        if self._num_rounds % 2:  # somebody looks at everything, but not all the time
            for name in self.engine.published.revisions:
                self.engine.publishing.request(name)
        try:
            self.engine._round()
        except Killed:
            self.die()

    def ask(self, random: Random) -> None:
        """Let somebody acknowledge all that fires, or add a silence, or end one."""
        if self.engine is None:
            return
        state, now_ns = self.engine._state, self._world.clock.wall_ns
        submit = self.engine.commands.submit
        match random.choice(("acknowledge", "silence", "end")):
            case "acknowledge":
                attempts = [attempt for run in state.runs.values() for attempt in run.attempts]
                for alert in (a for attempt in attempts for a in attempt.active_alerts.alerts()):
                    submit(Acknowledge(alert.id, by="ann", comment=""))
            case "silence":
                until_ns = now_ns + round(random.choice((1.0, 10.0, 600.0)) * SECOND_NS)
                rule, layers = random.choice(("exploding", "*")), random.choice(("head", "*"))
                submit(AddSilence("gpt", rule, layers, until_ns, by="ann", comment=""))
            case "end":
                for silence in state.silences:
                    submit(RemoveSilence(silence.id))

    def stop(self) -> None:
        """Stop cleanly, as on SIGTERM."""
        if self.engine is None:
            return
        self.engine.stop()
        with contextlib.suppress(Killed):
            self.engine.run()  # what it does once it is told to stop
        self.die()

    @property
    def num_duplicates(self) -> int:
        """Records refused because they are stored, since the first start."""
        now = self.engine.published.num_duplicates if self.engine is not None else 0
        return self._num_duplicates + now

    def die(self) -> None:
        """Lose everything that is not on the disk."""
        self._num_duplicates, self.engine = self.num_duplicates, None
        self.disk.rollback()
        self._world.network.restart()

    @property
    def has_waiting(self) -> bool:
        return self.engine is not None and bool(self.engine._ingest._queue)

    def check(self) -> None:
        """Check what the engine says of itself."""
        now = (self.num_boots, len(self._world.invariants.entries))
        if self.engine is None or now == self._checked:
            return
        self._checked = now
        num_errors = self.engine.published.num_apply_errors
        require(not num_errors, "every entry can be applied", num_errors)
        self._world.invariants.check_state(self.engine._state)
        for name in self.budget_use:
            used, limit = self.budget_use[name].used, self.budget_use.limit(name)
            kept = name in AFTER_A_ROUND or (used or 0.0) <= limit
            require(kept, "budgets are kept to", name, used, limit)
        for run in self.engine._state.runs.values():
            bound = max(self._world.scenario.max_held, 16 * run.current.world)
            held = run.current.open.frames._num_held
            require(held <= bound, "open frames are bounded", held, bound)


def _gone(run: Run, attempts: int) -> Gone:
    """Return what leaves memory with the attempts of a run up to a number."""
    gone = [attempt for attempt in run.attempts if attempt.number <= attempts]
    return Gone(
        [session.id for own in gone for session in own.sessions.values()],
        is_whole=len(gone) == len(run.attempts),
        is_live=any(own.lives and own.num_frames for own in gone),
    )
