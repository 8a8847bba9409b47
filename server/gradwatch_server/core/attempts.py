"""One attempt of a run: its sessions, layers, open frames, window and alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from gradwatch_server.core.alerting.active import ActiveAlerts
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.evaluation import ALL_LAYERS, Context
from gradwatch_server.core.alerting.flags import Flags, find_flags
from gradwatch_server.core.alerting.health_score import frame_score
from gradwatch_server.core.alerting.origin import FirstBad, find_first_bad
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.frames.assembler import Assembler
from gradwatch_server.core.frames.frame import COLUMNS_READ, Frame, Layout, RankPart
from gradwatch_server.core.frames.gains import GainFrame, RankGains, merge_gains
from gradwatch_server.core.frames.layers import Layers, numbers
from gradwatch_server.core.frames.merging import merge
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.losses import DeclaredLoss, Losses, LostRange
from gradwatch_wire import Event, Gains, Hello, Manifest, Stats
from gradwatch_wire.health import RankState
from gradwatch_wire.session.replayed import is_replayed

ATTACH_GRACE_NS = 10_000_000_000
"""Frames wait for ranks that never said HELLO only this long after the attempt began."""


MAX_MANIFEST_LAYERS = 1 << 20
"""Layers of all manifests together that a session may name; the oldest manifests give way."""

MAX_EVENT_NAMES = 256
"""Names of events counted one by one in an attempt; more are counted as `other`."""


SKIPPED_STEP = "skipped_step"
"""The event of a step that a GradScaler skipped."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A manifest: what its records stand for, and whether in forward order."""

    layout: Layout
    ordered: bool

    @property
    def size(self) -> int:
        """What it counts towards `MAX_MANIFEST_LAYERS`: one without layers takes memory, too."""
        return len(self.layout.index) * (1 if self.layout.pieces is None else 4) + 16


@dataclass(slots=True)
class Session:
    """One `attach` of one rank."""

    id: bytes
    hello: Hello
    attempt: Attempt
    last_ns: int
    state: RankState = RankState.ALIVE
    acked: int = 0
    num_stored: int = 0
    num_lost: int = 0
    num_unresolved: int = 0
    num_skipped: int = 0
    last_skipped: int = -1
    last_step: int = -1
    reason: str = ""
    manifests: dict[int, Declared] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)


class Attempt:
    """Everything the aggregator knows of one attempt, derived from its log entries."""

    def __init__(self, run: str, number: int, hello: Hello, started_ns: int, steps: int) -> None:
        self.run = run
        self.number = number
        self.job = hello.job
        self.world = hello.world
        self.replayed = is_replayed(hello)  # its sessions all come from spill files
        self.started_ns = started_ns
        self.updated_ns = started_ns
        self.sessions: dict[int, Session] = {}
        self.layers = Layers()
        self.window = Window(steps)
        self.active_alerts = ActiveAlerts()
        self.first_bad: FirstBad | None = None
        self.last_frame: Frame | None = None
        self.last_flags: Flags | None = None
        self.last_gains: GainFrame | None = None
        self.events: Counter[str] = Counter()
        self.num_frames = 0
        self.num_late = 0
        self.retired = False
        self.open_frames: Assembler[RankPart] = Assembler()
        self.open_gains: Assembler[RankGains] = Assembler()
        self._alive: set[int] = set()
        self._context: Context | None = None

    @property
    def waiting(self) -> bool:
        """Whether frames are open."""
        return bool(self.open_frames or self.open_gains)

    def is_another(self, hello: Hello) -> bool:
        """Tell whether *hello* is of another launch of the run than this attempt."""
        launch = (hello.job, hello.world)
        return (
            hello.rank in self.sessions
            or launch != (self.job, self.world)
            or is_replayed(hello) != self.replayed
        )

    def join(self, session: Session) -> None:
        """Add a rank's session."""
        self.sessions[session.hello.rank] = session
        self._alive.add(session.hello.rank)

    def set_state(self, session: Session, state: RankState) -> None:
        """Note that a session ended, is lost, or is back."""
        session.state = state
        if state is RankState.ALIVE:
            self._alive.add(session.hello.rank)
        else:
            self._alive.discard(session.hello.rank)

    def add_manifest(self, session: Session, manifest: Manifest) -> None:
        """Give each layer of the manifest a place; known names keep theirs."""
        if self.retired:
            return
        layout = self.layers.declare(manifest)
        if layout is None:
            session.num_unresolved += 1
            return
        session.manifests.pop(manifest.manifest_id, None)
        session.manifests[manifest.manifest_id] = Declared(layout, manifest.order == "forward")
        while sum(known.size for known in session.manifests.values()) > MAX_MANIFEST_LAYERS:
            del session.manifests[next(iter(session.manifests))]
        self._context = None

    def add_event(self, session: Session, event: Event) -> None:
        """Count an event by its name, and a step that was skipped once, for all its optimizers."""
        known = event.name in self.events or len(self.events) < MAX_EVENT_NAMES
        self.events[event.name if known else "other"] += 1
        if event.name == SKIPPED_STEP and event.step > session.last_skipped:
            session.num_skipped += 1
            session.last_skipped = event.step

    def add_stats(self, session: Session, stats: Stats, received_ns: int) -> None:
        """Take in one rank's statistics of one step."""
        session.last_step = stats.step
        session.losses.resume(stats.step)
        if self.retired:
            self.num_late += 1
            return
        rank = session.hello.rank
        self.open_gains.note(rank, stats.step)  # it may measure none
        part = _read(session, stats)
        if part is None:
            session.num_unresolved += 1
        elif not self.open_frames.add(
            rank,
            part,
            step=stats.step,
            now_ns=received_ns,
            part=stats.part,
            parts=stats.parts,
        ):
            self.num_late += 1

    def add_gains(self, session: Session, gains: Gains, received_ns: int) -> None:
        """Take in one rank's gains of one step."""
        rank = session.hello.rank
        own = RankGains(rank, gains.blocks, gains.norm_type, numbers(gains.norms))
        if self.retired or not self.open_gains.add(rank, own, step=gains.step, now_ns=received_ns):
            self.num_late += 1

    def add_loss(
        self, session: Session, first: int, last: int, now_ns: int, rules: Rules
    ) -> Iterator[Alert]:
        """Note that records of a session are lost."""
        after = session.last_step if session.last_step >= 0 else None
        lost = LostRange(first, last, after)
        session.losses.add(lost)
        yield from self.evaluate(DeclaredLoss(session.hello.rank, lost, now_ns), rules)

    def close_frames(self, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Close the frames that are due and evaluate them."""
        if self.waiting:
            yield from self._close(self._expected(now_ns), now_ns, rules)

    def retire(self, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Close what is open and let all go that only the current attempt needs."""
        yield from self._close(set(), now_ns, rules)
        self.retired = True
        self.window = Window(1)
        self.last_frame, self.last_flags, self.last_gains = None, None, None
        self.layers, self._context = Layers(), None
        for session in self.sessions.values():
            session.manifests.clear()

    def _close(self, expected: set[int], now_ns: int, rules: Rules) -> Iterator[Alert]:
        for gathered in self.open_frames.close(expected, now_ns, self.world):
            yield from self._add_frame(merge(gathered, len(self.layers.names), self.world), rules)
        for gains in self.open_gains.close(expected, now_ns, self.world):
            self.last_gains = merge_gains(gains)
            yield from self.evaluate(self.last_gains, rules)

    def _expected(self, now_ns: int) -> set[int]:
        if len(self.sessions) < self.world and now_ns - self.started_ns < ATTACH_GRACE_NS:
            return self._alive | (set(range(self.world)) - self.sessions.keys())
        return self._alive

    def evaluate(self, observation: object, rules: Rules) -> Iterator[Alert]:
        """Hand an observation to the rules that take its type."""
        context = self._describe()
        flags = find_flags(observation, rules, context)
        yield from self.active_alerts.update(observation, flags, rules, context)

    def _add_frame(self, frame: Frame, rules: Rules) -> Iterator[Alert]:
        context = self._describe()
        flags = find_flags(frame, rules, context)
        if self.first_bad is None:
            self.first_bad = find_first_bad(frame, context.names)
        yield from self.active_alerts.update(frame, flags, rules, context)
        self.window.add(frame, frame_score(frame, flags))
        # Without the records: nobody asks for them any more, and those of many ranks are large.
        self.last_frame, self.last_flags = replace(frame, parts=()), flags
        self.num_frames += 1
        self.updated_ns = frame.received_ns

    def _describe(self) -> Context:
        if self._context is None:
            grouped = self.layers.groups()
            rest = np.ones(len(self.layers.names), dtype=np.bool_)
            for members in grouped.values():
                rest &= ~members
            rest |= grouped.get(ALL_LAYERS, rest)  # a group may have that name, too
            self._context = Context(
                run=self.run,
                attempt=self.number,
                names=tuple(self.layers.names),
                groups={**grouped, ALL_LAYERS: rest},
                window=self.window,
            )
        return self._context


def _read(session: Session, stats: Stats) -> RankPart | None:
    """Return a record in the order of its manifest, None if it does not fit one."""
    known = session.manifests.get(stats.manifest_id)
    values = {name: numbers(stats.columns[name]) for name in COLUMNS_READ if name in stats.columns}
    if known is None or "l2" not in values or len(values["l2"]) != len(known.layout.index):
        return None
    return RankPart(
        session.hello.rank, known.layout, known.ordered, values, stats.scalars, stats.labels
    )
