"""One attempt of a run: its sessions, layers, open frames, window and alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, Self

import numpy as np

from gradwatch_server.core.alerting.active import ActiveAlerts
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.baselines.baselines import Baselines
from gradwatch_server.core.alerting.evaluation import ALL_LAYERS, Context
from gradwatch_server.core.alerting.flags import (
    Flags,
    find_flags,
    flags_from_state_dict,
    flags_state_dict,
)
from gradwatch_server.core.alerting.health_score import frame_score
from gradwatch_server.core.alerting.memory import Memories
from gradwatch_server.core.alerting.origin import FirstBad, find_first_bad
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.assembler import Assembler
from gradwatch_server.core.frames.frame import Frame, RankPart
from gradwatch_server.core.frames.gains import GainFrame, RankGains, merge_gains
from gradwatch_server.core.frames.layers import Layers, numbers
from gradwatch_server.core.frames.layout import Layout, LayoutTable, unpack_layout
from gradwatch_server.core.frames.merging import merge
from gradwatch_server.core.frames.outputs import OutputHistory
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.losses import DeclaredLoss, LostRange
from gradwatch_server.core.noise_scale import NoiseScale
from gradwatch_server.core.session import DeclaredManifest, Session
from gradwatch_wire import Event, Gains, Hello, Manifest, Stats
from gradwatch_wire.health import RankState
from gradwatch_wire.names import LayerOrder
from gradwatch_wire.session.replayed import is_replayed

ATTACH_GRACE_NS = 10_000_000_000
"""Frames wait for ranks that never said HELLO only this long after the attempt began."""


MAX_EVENT_NAMES = 256
"""Names of events counted one by one in an attempt; more are counted as `other`."""

_IDENTITY: Final = ("number", "job", "world", "replayed", "started_ns")
_PROGRESS: Final = ("updated_ns", "num_frames", "num_late", "retired")


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
        self.outputs = OutputHistory()
        self.baselines = Baselines()
        self.noise_scale = NoiseScale(steps)
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
        self.memories = Memories()
        self._context: Context | None = None
        self._rules: Rules | None = None  # those that the memories follow

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
        ordered = manifest.order == LayerOrder.FORWARD
        session.declare(manifest.manifest_id, DeclaredManifest(layout, ordered))
        self._context = None

    def add_event(self, session: Session, event: Event) -> None:
        """Count an event by its name."""
        known = event.name in self.events or len(self.events) < MAX_EVENT_NAMES
        self.events[event.name if known else "other"] += 1
        session.add_event(event)

    def add_stats(self, session: Session, stats: Stats, received_ns: int) -> None:
        """Take in one rank's statistics of one step."""
        session.last_step = stats.step
        session.losses.resume(stats.step)
        if self.retired:
            self.num_late += 1
            return
        rank = session.hello.rank
        self.open_gains.note(rank, stats.step)  # it may measure none
        part = session.read(stats)
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
        """Close open frames, and free what only the current attempt needs."""
        yield from self._close(set(), now_ns, rules)
        self.retired = True
        self.window, self.outputs, self.baselines = Window(1), OutputHistory(), Baselines()
        self.last_frame, self.last_flags, self.last_gains = None, None, None
        self.layers, self._context = Layers(), None
        self.noise_scale = NoiseScale(1)
        self.memories, self._rules = Memories(), None
        for session in self.sessions.values():
            session.manifests.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return plain data of all but the rows of the window, which `Window.chunk` gives."""
        layouts = LayoutTable()
        return {
            **{name: getattr(self, name) for name in (*_IDENTITY, *_PROGRESS)},
            "sessions": [own.state_dict(layouts) for own in self.sessions.values()],
            "layers": self.layers.state_dict(),
            "window": self.window.state_dict(),
            "outputs": self.outputs.state_dict(layouts),
            "baselines": self.baselines.state_dict(),
            "noise_scale": self.noise_scale.state_dict(),
            "book": self.active_alerts.state_dict(),
            "first_bad": asdict(self.first_bad) if self.first_bad else None,
            "frame": self.last_frame.state_dict() if self.last_frame else None,
            "flags": None if self.last_flags is None else flags_state_dict(self.last_flags),
            "gains": self.last_gains.state_dict() if self.last_gains else None,
            "memories": self.memories.state_dict(),
            "events": list(self.events.items()),
            "open_frames": self.open_frames.state_dict(lambda part: part.state_dict(layouts)),
            "open_gains": self.open_gains.state_dict(RankGains.state_dict),
            "layouts": layouts.states,  # which those above have filled
        }

    @classmethod
    def from_state_dict(
        cls, run: str, state: Mapping[str, Any], steps: Iterable[tuple[int, FloatArray]]
    ) -> Self:
        """Return the attempt that `state_dict` described; the columns of its window are absent.

        Args:
            run: Name of its run.
            state: What it described. What later versions added is read with a default.
            steps: Number and `steps` of all chunks of the window.

        Raises:
            Exception: Of any kind if *state* is not what it described.
        """
        hello = Hello(run=run, rank=0, world=state["world"], job=state["job"])
        attempt = cls(run, state["number"], hello, state["started_ns"], 1)
        attempt.replayed = state.get("replayed", False)
        for name in _PROGRESS:
            setattr(attempt, name, state[name])
        attempt.layers = Layers.from_state_dict(state["layers"])
        layouts = [attempt.layers.share(unpack_layout(own)) for own in state["layouts"]]
        attempt._restore_records(state, layouts)
        attempt.window = Window.from_state_dict(state["window"], steps)
        attempt.outputs = OutputHistory.from_state_dict(state.get("outputs", ()), layouts)
        if "baselines" in state:
            attempt.baselines = Baselines.from_state_dict(state["baselines"])
        attempt.noise_scale = NoiseScale.from_state_dict(
            state.get("noise_scale", {"count": 0, "samples": []}), attempt.window.capacity
        )
        attempt._restore_results(state)
        return attempt

    def _restore_records(self, state: Mapping[str, Any], layouts: Sequence[Layout]) -> None:
        """Restore the sessions, and what they sent of the frames that are open."""
        for own in state["sessions"]:
            session = Session.from_state_dict(own, self.run, self.number, layouts)
            self.join(session)
            self.set_state(session, session.state)
        self.events = Counter(dict(state["events"]))
        self.open_frames = Assembler.from_state_dict(
            state["open_frames"], lambda part: RankPart.from_state_dict(part, layouts)
        )
        self.open_gains = Assembler.from_state_dict(state["open_gains"], RankGains.from_state_dict)

    def _restore_results(self, state: Mapping[str, Any]) -> None:
        """Restore what was found in the frames that are closed."""
        first_bad, frame, gains = state["first_bad"], state["frame"], state["gains"]
        self.active_alerts = ActiveAlerts.from_state_dict(state["book"])
        self.memories = Memories(state.get("memories"))
        self.first_bad = FirstBad(**first_bad) if first_bad else None
        self.last_frame = Frame.from_state_dict(frame) if frame else None
        flags = state["flags"]
        self.last_flags = None if flags is None else flags_from_state_dict(flags)
        self.last_gains = GainFrame.from_state_dict(gains) if gains else None

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
        context = self._describe(rules)
        flags = find_flags(observation, rules, context)
        yield from self.active_alerts.update(observation, flags, rules, context)

    def _add_frame(self, frame: Frame, rules: Rules) -> Iterator[Alert]:
        context = self._describe(rules)
        flags = find_flags(frame, rules, context)
        if self.first_bad is None:
            self.first_bad = find_first_bad(frame, context.names)
        yield from self.active_alerts.update(frame, flags, rules, context)
        self.window.add(frame, frame_score(frame, flags))
        self.baselines.add(frame, context.names)
        self.outputs.add(frame)
        self.noise_scale.add(frame)
        # Without the records: nobody asks for them any more, and those of many ranks are large.
        self.last_frame = replace(frame, parts=(), disagreement=None)
        self.last_flags = flags
        self.num_frames += 1
        self.updated_ns = frame.received_ns

    def _describe(self, rules: Rules) -> Context:
        if rules is not self._rules:
            self.memories.follow(rules.root.items())
            self._rules = rules
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
                outputs=self.outputs,
                baselines=self.baselines,
                memories=self.memories,
            )
        return self._context
