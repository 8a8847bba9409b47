"""The real engine over a simulated socket, disk and clock: stepped, killed and started again."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Final, Protocol

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.engine.engine import Engine
from gradwatch_server.errors import GradwatchError
from gradwatch_server.ingest.socket import Ingest, Message
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.store import StorageError, StorageFault
from gradwatch_wire import Ack, Envelope, Record, Welcome, decode
from simulation.clock import Clock
from simulation.disk import Disk, SimulatedStore
from simulation.invariants import InvariantChecker, Violation, require
from simulation.network import Network
from simulation.scenario import Scenario

WINDOW_STEPS: Final = 16


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


class SimulatedIngest(Ingest):
    """The port of the aggregator, on the simulated network."""

    def __init__(self, world: World) -> None:
        self.refused: Counter[str] = Counter()
        self.endpoint = "simulated"
        self._world = world

    def receive(self, timeout_ms: int) -> Iterator[Message]:  # noqa: ARG002 - time passes elsewhere
        """Yield what has arrived, up to a batch."""
        world = self._world
        for _ in range(world.batch):
            found = world.network.receive(world.clock.now_s)
            if found is None:
                return
            connection, frames = found
            envelope = decode(frames)
            yield Message(connection.peer, envelope, frames[1])
            world.point("receive")

    def reply(self, peer: bytes, session: bytes, record: Record) -> bool:
        """Send an answer; what it promises is checked at once."""
        world = self._world
        world.point("reply")
        if isinstance(record, (Ack, Welcome)):
            world.invariants.acknowledged(session, record.acked)
        return world.network.reply(
            peer, Envelope(session=session, record=record), world.clock.now_s
        )

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
        self._num_duplicates = 0
        self._checked = (0, 0)
        self._world = world
        self._class = engine
        self.disk = Disk(self._before, self._after)
        self.store = SimulatedStore(self.disk, world.clock.boot(), world.invariants.committed)

    def _before(self, word: str) -> None:
        self._world.point(f"before {word}")
        if self._world.fails(word):
            raise StorageError("database or disk is full", StorageFault.FULL)

    def _after(self, word: str) -> None:
        if word == "COMMIT":
            self.store.committed()
        self._world.point(f"after {word}")

    def _fail(self) -> None:
        raise Violation("the engine fails at nothing")

    def boot(self) -> bool:
        """Start; return whether it came up."""
        world = self._world
        clock = world.clock.boot()
        self.num_boots += 1
        try:
            self.store = SimulatedStore(self.disk, clock, world.invariants.committed)
            engine = self._class(
                self.store,
                SimulatedIngest(world),
                Rules(),
                clock=clock,
                window_steps=WINDOW_STEPS,
                session_timeout_s=world.scenario.session_timeout_s,
                on_alerts=lambda: None,
                on_failure=self._fail,
                retention=RetentionPolicy(
                    log_max_age_s=world.scenario.log_age_s,
                    checkpoint_s=world.scenario.checkpoint_s,
                ),
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
        world.note("aggregator starts,", len(world.invariants.entries), "entries")
        return True

    def step(self) -> None:
        """Do one round."""
        if self.engine is None:
            return
        try:
            self.engine._round()
        except Killed:
            self.die()

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

    def check(self) -> None:
        """Check what the engine says of itself."""
        now = (self.num_boots, len(self._world.invariants.entries))
        if self.engine is None or now == self._checked:
            return
        self._checked = now
        num_errors = self.engine.published.num_apply_errors
        require(not num_errors, "every entry can be applied", num_errors)
        self._world.invariants.check_state(self.engine._state)
        scenario = self._world.scenario
        bound = max(scenario.max_held, 16 * scenario.world)
        for run in self.engine._state.runs.values():
            held = run.current.open._frames._num_held
            require(held <= bound, "open frames are bounded", held, bound)
