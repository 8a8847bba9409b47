"""One attempt of a run: its sessions, layers, open frames, window and alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import numpy as np

from gradwatch_server.core.alerts import ALL_LAYERS, Alert, Book, Context
from gradwatch_server.core.frames import (
    COLUMNS,
    Assembler,
    BoolArray,
    FloatArray,
    Frame,
    IndexArray,
    RankPart,
)
from gradwatch_server.core.origin import FirstBad, find_first_bad
from gradwatch_server.core.rules import Flags, Rules, flags
from gradwatch_server.core.windows import Window
from gradwatch_wire import Column, Event, Hello, Manifest, Stats
from gradwatch_wire.health import RankState, health_score
from gradwatch_wire.limits import MAX_GROUPS, MAX_LAYERS

ATTACH_GRACE_NS = 10_000_000_000
"""Frames wait for ranks that never said HELLO only this long after the attempt began."""


MAX_MANIFEST_LAYERS = 1 << 20
"""Layers of all manifests together that a session may name; the oldest manifests give way."""

MAX_EVENT_NAMES = 256
"""Names of events counted one by one in an attempt; more are counted as `other`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the layers of a manifest lie in its attempt, and whether in forward order."""

    index: IndexArray
    ordered: bool

    @property
    def size(self) -> int:
        """What it counts towards `MAX_MANIFEST_LAYERS`: one without layers takes memory, too."""
        return len(self.index) + 16


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
    last_step: int = -1
    reason: str = ""
    manifests: dict[int, Layout] = field(default_factory=dict)


class Attempt:
    """Everything the aggregator knows of one attempt, derived from its log entries."""

    def __init__(self, run: str, number: int, hello: Hello, started_ns: int, steps: int) -> None:
        self.run = run
        self.number = number
        self.job = hello.job
        self.world = hello.world
        self.started_ns = started_ns
        self.updated_ns = started_ns
        self.sessions: dict[int, Session] = {}
        self.names: list[str] = []
        self.numel: list[int] = []
        self.window = Window(steps)
        self.book = Book()
        self.first_bad: FirstBad | None = None
        self.last_frame: Frame | None = None
        self.last_flags: Flags | None = None
        self.events: Counter[str] = Counter()
        self.num_frames = 0
        self.num_late = 0
        self.retired = False
        self._places: dict[str, int] = {}
        self._groups: dict[str, set[int]] = {}
        self._indices: WeakValueDictionary[bytes, IndexArray] = WeakValueDictionary()
        self._assembler = Assembler()
        self._alive: set[int] = set()
        self._context: Context | None = None

    @property
    def waiting(self) -> bool:
        """Whether frames are open."""
        return bool(self._assembler)

    def is_another(self, hello: Hello) -> bool:
        """Tell whether *hello* is of another launch of the run than this attempt."""
        launch = (hello.job, hello.world)
        return hello.rank in self.sessions or launch != (self.job, self.world)

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
        new = [name for name in manifest.names if name not in self._places]
        if len(self.names) + len(new) > MAX_LAYERS:
            session.num_unresolved += 1
            return
        for name, numel in zip(manifest.names, _numbers(manifest.numel), strict=True):
            if name not in self._places:
                self._places[name] = len(self.names)
                self.names.append(name)
                self.numel.append(int(numel))
        index = np.array([self._places[name] for name in manifest.names], dtype=np.int64)
        # Ranks of one layout share one array, by which their records are known to be alike.
        index = self._indices.setdefault(index.tobytes(), index)
        self._add_groups(manifest, index)
        session.manifests.pop(manifest.manifest_id, None)
        session.manifests[manifest.manifest_id] = Layout(index, manifest.order == "forward")
        while sum(known.size for known in session.manifests.values()) > MAX_MANIFEST_LAYERS:
            del session.manifests[next(iter(session.manifests))]
        self._context = None

    def _add_groups(self, manifest: Manifest, index: IndexArray) -> None:
        for group, members in manifest.groups.items():
            # The layers of one group too many stay among all others: watched all the same.
            if group in self._groups or len(self._groups) < MAX_GROUPS:
                self._groups.setdefault(group, set()).update(int(index[i]) for i in members)

    def add_event(self, event: Event) -> None:
        """Count an event by its name."""
        known = event.name in self.events or len(self.events) < MAX_EVENT_NAMES
        self.events[event.name if known else "other"] += 1

    def add_stats(self, session: Session, stats: Stats, received_ns: int) -> None:
        """Take in one rank's statistics of one step."""
        session.last_step = stats.step
        if self.retired:
            self.num_late += 1
            return
        known = session.manifests.get(stats.manifest_id)
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
            values = {
                name: _numbers(stats.columns[name]) for name in COLUMNS if name in stats.columns
            }
        if known is None or "l2" not in values or len(values["l2"]) != len(known.index):
            session.num_unresolved += 1
            return
        part = RankPart(
            session.hello.rank, known.index, known.ordered, values, stats.scalars, stats.labels
        )
        if not self._assembler.add(part, stats, received_ns):
            self.num_late += 1

    def close_frames(self, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Close the frames that are due and judge them."""
        if not self._assembler:
            return
        expected = self._expected(now_ns)
        for frame in self._assembler.close(expected, now_ns, len(self.names), self.world):
            yield from self._judge(frame, rules)

    def retire(self, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Close what is open and let all go that only the current attempt needs."""
        for frame in self._assembler.close(set(), now_ns, len(self.names), self.world):
            yield from self._judge(frame, rules)
        self.retired = True
        self.window = Window(1)
        self.last_frame, self.last_flags, self._context = None, None, None
        self.names, self.numel, self._places, self._groups = [], [], {}, {}
        for session in self.sessions.values():
            session.manifests.clear()

    def _expected(self, now_ns: int) -> set[int]:
        if len(self.sessions) < self.world and now_ns - self.started_ns < ATTACH_GRACE_NS:
            return self._alive | (set(range(self.world)) - self.sessions.keys())
        return self._alive

    def _judge(self, frame: Frame, rules: Rules) -> Iterator[Alert]:
        marked = flags(frame, rules)
        context = self._describe()
        if self.first_bad is None:
            self.first_bad = find_first_bad(frame, context.names, rules)
        yield from self.book.update(frame, marked, rules, context)
        self.window.add(frame, _score(frame, marked))
        self.last_frame, self.last_flags = frame, marked
        self.num_frames += 1
        self.updated_ns = frame.received_ns

    def _describe(self) -> Context:
        if self._context is None:
            count = len(self.names)
            grouped = {name: _mask(members, count) for name, members in self._groups.items()}
            rest = ~np.logical_or.reduce([*grouped.values(), np.zeros(count, dtype=np.bool_)])
            rest |= grouped.get(ALL_LAYERS, rest)  # a group may have that name, too
            self._context = Context(
                run=self.run,
                attempt=self.number,
                names=tuple(self.names),
                groups={**grouped, ALL_LAYERS: rest},
                window=self.window,
            )
        return self._context


def _numbers(column: Column) -> FloatArray:
    return np.frombuffer(column.data, dtype=column.code).astype(np.float64, copy=False)


def _mask(members: set[int], count: int) -> BoolArray:
    mask = np.zeros(count, dtype=np.bool_)
    mask[list(members)] = True
    return mask


def _score(frame: Frame, marked: Flags) -> float:
    present = int(np.count_nonzero(frame.present))
    if not present:
        return 1.0
    exploding = np.count_nonzero(marked.exploding) + np.count_nonzero(marked.nonfinite)
    return health_score(
        float(np.count_nonzero(marked.vanishing)) / present, float(exploding) / present
    )
