"""A simulated job: it writes the entries of a log, and applies them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.evaluation import ALL_LAYERS, Context
from gradwatch_server.core.alerting.memory import Memories
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.entries import (
    BeatProgress,
    Beats,
    BudgetsSet,
    Entry,
    Gap,
    Lost,
    Opened,
    Received,
    Resumed,
    RulesSet,
    Tick,
)
from gradwatch_server.core.frames.assembler import StepRecords
from gradwatch_server.core.frames.frame import COLUMNS_READ, Frame, RankRecord, RecordColumns
from gradwatch_server.core.frames.layers import Layers
from gradwatch_server.core.frames.layout import Layout
from gradwatch_server.core.frames.merging import merge
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_wire import Bye, Column, Envelope, Event, Gains, Hello, Record, Stats
from gradwatch_wire.health import AlertState, Severity
from gradwatch_wire.names import Scalar
from tests.support.records import manifest_of
from tests.support.whole_state import UNREPEATED, WholeState

SECOND = 1_000_000_000
START_NS = 1_763_000_000 * SECOND


Numbers: TypeAlias = Sequence[float] | FloatArray


def stats_of(step: int, l2: Numbers, **changes: Any) -> Stats:
    """Return one rank's statistics; `nans=[...]` and the like are columns, `loss=` a scalar."""
    columns = {"l2": Column.pack("<f8", l2)}
    for name in COLUMNS_READ:
        if name in changes:
            columns[name] = Column.pack("<f8", changes.pop(name))
    given = {name: changes.pop(name, None) for name in Scalar}
    scalars = {name: float(value) for name, value in given.items() if value is not None}
    settings: dict[str, Any] = {"manifest_id": 1, "scalars": scalars, "columns": columns}
    return Stats(step=step, **settings | changes)


class Cluster:
    """One run of `world` ranks. Each method is one entry and returns the alerts it caused."""

    numbers = itertools.count(1)

    def __init__(
        self, world: int = 1, names: Sequence[str] = ("a", "b", "c"), **settings: Any
    ) -> None:
        self.world = world
        self.names = tuple(names)
        self.run: str = settings.pop("run", "gpt")
        self.order: str = settings.pop("order", "forward")
        self.groups: Mapping[str, tuple[int, ...]] = settings.pop("groups", {})
        self.state: WholeState = settings.pop("state", None) or WholeState(**settings)
        self.now_ns = START_NS
        self.entries: list[Entry] = []
        self.alerts: list[Any] = []
        self.sessions: dict[int, bytes] = {}  # rank -> its newest session
        self._seqs: dict[bytes, int] = {}

    def put(self, body: Any) -> list[Any]:
        self.now_ns += 1_000_000
        entry = Entry(self.now_ns, body)
        self.entries.append(entry)
        alerts = self.state.apply(entry)
        self.alerts += alerts
        return alerts

    def open(self, rank: int = 0, **hello: Any) -> list[Any]:
        """A new session says HELLO."""
        session = next(self.numbers).to_bytes(16, "big")
        self.sessions[rank] = session
        self._seqs[session] = 0
        settings: dict[str, Any] = {"run": self.run, "rank": rank, "world": self.world}
        return self.put(Opened(session, Hello(**settings | hello)))

    def back(self, rank: int) -> list[Any]:
        """A session taken for lost speaks again."""
        session = self.sessions[rank]
        return self.put(Opened(session, self.state.sessions[session].hello))

    def send(self, rank: int, record: Record, session: bytes | None = None) -> list[Any]:
        session = session or self.sessions[rank]
        self._seqs[session] += 1
        return self.put(
            Received(Envelope(session=session, seq=self._seqs[session], low=1, record=record))
        )

    def declare(self, rank: int, names: Sequence[str] | None = None, **changes: Any) -> list[Any]:
        names = self.names if names is None else names
        settings = {"order": self.order, "groups": self.groups} | changes
        return self.send(rank, manifest_of(names, **settings))

    def stats(self, rank: int, step: int, l2: Numbers | float = 1.0, **changes: Any) -> list[Any]:
        values = [l2] * len(self.names) if isinstance(l2, (int, float)) else l2
        return self.send(rank, stats_of(step, values, **changes))

    def event(self, rank: int, name: str, step: int = 0) -> list[Any]:
        return self.send(rank, Event(name=name, step=step))

    def gains(self, rank: int, step: int, *norms: float, **changes: Any) -> list[Any]:
        """Norms at blocks that are called `b0`, `b1`, and so on."""
        blocks = tuple(f"b{i}" for i in range(len(norms)))
        settings: dict[str, Any] = {
            "blocks": blocks,
            "norm_type": "l2",
            "norms": Column.pack("<f8", norms),
        }
        return self.send(rank, Gains(step=step, **settings | changes))

    def bye(self, rank: int, reason: str = "closed") -> list[Any]:
        return self.send(rank, Bye(reason=reason))

    def gap(self, rank: int, count: int) -> list[Any]:
        """The next *count* records of a rank are lost."""
        session = self.sessions[rank]
        first = self._seqs[session] + 1
        self._seqs[session] += count
        return self.put(Gap(session, first, first + count - 1))

    def lose(self, rank: int) -> list[Any]:
        return self.put(Lost(self.sessions[rank]))

    def beat(
        self,
        *ranks: int,
        after: float = 0.0,
        since_s: float | None = None,
        training: bool | None = None,
    ) -> list[Any]:
        self.now_ns += round(after * SECOND)
        told = []
        for rank in ranks:
            session = self.state.sessions[self.sessions[rank]]
            passed = (self.now_ns - session.stepped_ns) / SECOND if since_s is None else since_s
            told.append(BeatProgress(session.id, session.last_step, passed, training))
        return self.put(Beats(tuple(told)))

    def resume(self, after: float = 0.0) -> list[Any]:
        """The aggregator was away for some seconds, and is back."""
        self.now_ns += round(after * SECOND)
        return self.put(Resumed())

    def wait(self, seconds: float) -> list[Any]:
        """Time passes, and the aggregator notes it."""
        self.now_ns += round(seconds * SECOND)
        return self.put(Tick())

    def rules(self, **rules: Mapping[str, Any]) -> list[Any]:
        return self.put(RulesSet(json.dumps(UNREPEATED | rules)))

    def budgets(self, **budgets: int) -> list[Any]:
        return self.put(BudgetsSet(json.dumps(budgets)))

    def start(self, **hello: Any) -> Cluster:
        for rank in range(self.world):
            self.open(rank, **hello)
            self.declare(rank)
        return self

    def step(self, step: int, l2: Numbers | float = 1.0, **changes: Any) -> list[Any]:
        return [a for rank in range(self.world) for a in self.stats(rank, step, l2, **changes)]

    @property
    def attempt(self) -> Any:
        return self.state.runs[self.run].current

    @property
    def frame(self) -> Frame:
        frame = self.attempt.last_frame
        assert isinstance(frame, Frame)
        return frame

    @property
    def closed(self) -> list[int]:
        """Steps of the frames in the window."""
        steps: list[int] = self.attempt.window.series().steps.tolist()
        return steps

    def health(
        self,
        seconds_later: float = 0.0,
        last_seen: Mapping[bytes, int] | None = None,
        fault: str | None = None,
    ) -> Any:
        view = view_run(self.state.runs[self.run], self.state.rules)
        return health(view, last_seen or {}, self.now_ns + round(seconds_later * SECOND), fault)


def part_of(l2: Numbers, rank: int = 0, **settings: Any) -> RankRecord:
    """Return a part of a frame; *index* places its layers, *shards* says what a rank holds of them.

    All others are columns or fields.
    """
    columns = {"l2": Column.pack("<f8", l2)}
    for name in COLUMNS_READ:
        if name in settings:
            columns[name] = Column.pack("<f8", settings.pop(name))
    index = np.array(settings.pop("index", range(len(l2))), dtype=np.int64)
    layout = Layout(index, layout_of(settings.pop("shards", ())).shards)
    defaults: dict[str, Any] = {"ordered": True, "scalars": {}, "labels": {}}
    record = RecordColumns(0, columns)
    return RankRecord(rank=rank, layout=layout, record=record, **defaults | settings)


def layout_of(shards: Sequence[str]) -> Layout:
    """Return what a manifest with these shards comes to."""
    names = [f"layer {i}" for i in range(len(shards))]
    layout = Layers().declare(manifest_of(names, shards=tuple(shards)))
    assert layout is not None
    return layout


def frame_of(*parts: RankRecord, step: int = 7, after: int = -1, world: int | None = None) -> Frame:
    """Merge parts into a frame: `frame_of(part, part, world=2, step=7)`."""
    layers = max((int(part.layout.index.max(initial=-1)) + 1 for part in parts), default=0)
    ranks = len({part.rank for part in parts})
    with np.errstate(all="ignore"):
        return merge(StepRecords(step, after, START_NS, parts), layers, world or ranks)


def judged(frame: Frame, *names: str) -> Context:
    """Return the context of an attempt whose judge has just seen its first frame."""
    context = context_of(*names)
    with np.errstate(all="ignore"):
        context.judge.add(frame, context.names, context.numel)
    return context


def context_of(*names: str) -> Context:
    """Make the context of an attempt with these layers, or some: `context_of("a", "b")`."""
    names = names or tuple("abcdefgh")
    groups = {ALL_LAYERS: np.ones(len(names), dtype=np.bool_)}
    memories = Memories()
    memories.update((rule.name, rule.memory) for rule in Rules().root.values())
    return Context("gpt", 1, names, groups, Window(), memories=memories)


def alert(
    rule: str,
    *,
    group: str = "seed/host",
    ranks: tuple[int, ...] = (0,),
    layers: int = 0,
    **origin: Any,
) -> Alert:
    rank = ranks[0] if len(ranks) == 1 else None
    known: dict[str, Any] = {"layer": None, "kind": None, "value": 0.0, "threshold": None}
    found = Origin(rank=rank, ranks=ranks, **{"step": 79, **known, **origin})
    return Alert(
        id="f" * 16,
        run="gpt",
        attempt=1,
        rule=rule,
        group=group,
        severity=Severity.WARNING,
        state=AlertState.FIRING,
        first_step=found.step,
        fired_step=found.step,
        raised_step=None,
        resolved_step=None,
        last_step=found.step,
        origin=found,
        layers=("a", "b", "c", "d")[:layers],
        num_layers=layers,
        updated_ns=0,
        message="",
        ranks=ranks,
    )
