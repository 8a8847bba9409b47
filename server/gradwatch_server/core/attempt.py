"""One attempt of a run: its sessions, layers, open frames, window and alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final, Self, TypeAlias

import numpy as np

from gradwatch_server.core.alerting.active import ActiveAlerts
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.baselines.baselines import Baselines
from gradwatch_server.core.alerting.evaluation import Context, all_groups
from gradwatch_server.core.alerting.flags import (
    Flags,
    find_flags,
    flags_from_state_dict,
    flags_state_dict,
)
from gradwatch_server.core.alerting.health_score import frame_score
from gradwatch_server.core.alerting.limits import LimitedRules
from gradwatch_server.core.alerting.memory import Memories
from gradwatch_server.core.alerting.origin import FirstBad, find_first_bad
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.entries import Progress
from gradwatch_server.core.frames.assembler import Assembler, Gathered
from gradwatch_server.core.frames.frame import Frame, LateFrame, RankPart
from gradwatch_server.core.frames.gains import GainFrame, RankGains, merge_gains
from gradwatch_server.core.frames.layers import Layers, numbers
from gradwatch_server.core.frames.layout import Layout, LayoutTable, unpack_layout
from gradwatch_server.core.frames.merging import merge
from gradwatch_server.core.frames.outputs import OutputHistory
from gradwatch_server.core.frames.step_order import GAINS, Placed, StepOrder, position, step_of
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.liveness import Liveness, look
from gradwatch_server.core.losses import DeclaredLoss, LostRange, RecentCount
from gradwatch_server.core.noise_scale import NoiseScale
from gradwatch_server.core.pace import Pace, known_seconds
from gradwatch_server.core.packing import pack_integer
from gradwatch_server.core.session import DeclaredManifest, Session
from gradwatch_wire import Event, Gains, Hello, Manifest, Stats
from gradwatch_wire.health import AlertState, RankState
from gradwatch_wire.names import LayerOrder, Scalar
from gradwatch_wire.session.replayed import is_replayed

ATTACH_GRACE_NS = 10_000_000_000
"""Frames wait for ranks that never said HELLO only this long after the attempt began."""


BEHIND_STEPS: Final = 2
"""A frame that is so far ahead of a rank counts as closed ahead of it."""

MAX_EVENT_NAMES = 256
"""Names of events counted one by one in an attempt; more are counted as `other`."""

_IDENTITY: Final = ("number", "job", "world", "replayed", "started_ns")
_PROGRESS: Final = ("updated_ns", "num_frames", "num_late", "retired")
_LIVENESS: Final = (
    *("heard_ns", "resumed_ns", "stepped_ns", "epoch", "is_evaluating", "was_away", "is_troubled"),
)

_TakenPart: TypeAlias = tuple[Stats, RankPart]


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
        self.heard_ns = started_ns  # the last sign of life of any rank
        self.resumed_ns = started_ns  # since when all could reach the aggregator
        self.stepped_ns = started_ns  # when the newest step came
        self.epoch = 0  # how often the steps of closed frames had gone back
        self.is_evaluating = False  # whether a rank said so since the newest step
        self.was_away = False  # whether the aggregator was away since then
        self.is_troubled = False  # whether an alert about liveness is active
        self.place = -1  # position of the newest step
        self.revision = 0  # counts the entries that concerned it; readers keep what is unchanged
        self.pace = Pace()
        self.late, self.lost, self.unresolved = (RecentCount(steps) for _ in range(3))
        self.steps: StepOrder[_TakenPart] = StepOrder(holds=hello.world > 1)
        self.open_frames: Assembler[RankPart] = Assembler()
        self.open_gains: Assembler[RankGains] = Assembler()
        self._alive: set[int] = set()
        self.memories = Memories()
        self._behind: set[int] = set()  # ranks that frames closed ahead of
        self._first_bad_at = -1  # position of the step of `first_bad`
        self._context: Context | None = None
        self._limits = LimitedRules()
        self._rules: Rules | None = None  # those last in force, for all runs
        self._in_force = Rules()  # those of them that watch this run

    @property
    def waiting(self) -> bool:
        """Whether frames are open."""
        return bool(self.open_frames or self.open_gains)

    @property
    def lives(self) -> bool:
        """Whether a rank has neither ended nor been lost."""
        return bool(self._alive)

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
        self.set_state(session, session.state)

    def set_state(self, session: Session, state: RankState) -> None:
        """Note that a session ended, is lost, or is back."""
        session.state = state
        rank = session.hello.rank
        if state is RankState.ALIVE:
            self._alive.add(rank)
            self.open_frames.expect(rank)
            self.open_gains.expect(rank)
        else:
            self._alive.discard(rank)

    def leave(
        self, session: Session, state: RankState, now_ns: int, rules: Rules
    ) -> Iterator[Alert]:
        """Note that a session ended or is lost, and judge what that decides."""
        self.set_state(session, state)
        if state is RankState.LOST:
            session.lost_ns = session.lost_ns or now_ns
        closed = self.open_frames.last_closed
        placed = self.steps.release(session.hello.rank, closed, alone=not self._alive)
        yield from self._take_in(placed, now_ns, rules)
        yield from self.close_frames(now_ns, rules)
        if state is not RankState.ENDED or self.is_troubled:
            yield from self.judge_liveness(now_ns, rules)

    def resume(self, now_ns: int) -> None:
        """Wait anew for all that is missing: the aggregator was away."""
        if not self._alive:
            return
        self.resumed_ns, self.was_away = now_ns, True
        self.open_frames.resume(now_ns)
        self.open_gains.resume(now_ns)
        for rank in self._alive:
            self.sessions[rank].wait_anew(now_ns)

    def note_sign(self, session: Session, now_ns: int) -> None:
        """Note a sign of life of a rank."""
        session.note_sign(now_ns)
        if not session.is_from_files:
            self.heard_ns = max(self.heard_ns, now_ns)

    def note_progress(self, session: Session, progress: Progress, now_ns: int) -> None:
        """Note what a BEAT said."""
        self.note_sign(session, now_ns)
        session.note_progress(progress.last_step, known_seconds(progress.since_s), now_ns)
        self.is_evaluating |= progress.training is False

    def judge_liveness(self, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Evaluate the rules about ranks and time."""
        yield from self.evaluate(self._look(now_ns), rules)
        watching = {name for name, _ in rules.taking(Liveness)}
        self.is_troubled = any(
            alert.rule in watching and alert.state is not AlertState.RESOLVED
            for alert in self.active_alerts.alerts()
        )

    def pass_time(self, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Close the frames that have waited long enough, and see who has been silent too long."""
        yield from self.close_frames(now_ns, rules)
        if self._alive:
            yield from self.judge_liveness(now_ns, rules)

    def _look(self, now_ns: int) -> Liveness:
        sessions = (self.sessions[rank] for rank in sorted(self.sessions))
        ranks = tuple(look(sessions, now_ns, from_files=self.replayed))
        return Liveness(
            received_ns=now_ns,
            place=self.place,
            step=max(step_of(self.place), 0),
            ranks=ranks,
            idle_s=min((rank.idle_s for rank in ranks if rank.lives), default=None),
            gaps=self.pace.gaps(),
            evaluating=self.is_evaluating,
            is_over=all(own.state is RankState.ENDED for own in self.sessions.values()),
        )

    def add_manifest(self, session: Session, manifest: Manifest) -> None:
        """Give each layer of the manifest a place; known names keep theirs."""
        if self.retired:
            return
        layout = self.layers.declare(manifest)
        if layout is None:
            self._note_unresolved(session)
            return
        ordered = manifest.order == LayerOrder.FORWARD
        session.declare(manifest.manifest_id, DeclaredManifest(layout, ordered))
        self._context = None

    def add_event(self, session: Session, event: Event) -> None:
        """Count an event by its name."""
        known = event.name in self.events or len(self.events) < MAX_EVENT_NAMES
        self.events[event.name if known else "other"] += 1
        session.add_event(event)

    def add_stats(
        self, session: Session, stats: Stats, now_ns: int, rules: Rules
    ) -> Iterator[Alert]:
        """Take in one rank's statistics of one step."""
        before, session.last_step, session.beat_step = session.last_step, stats.step, -1
        session.stepped_ns = now_ns
        session.losses.resume(stats.step)
        if self.retired:
            self._note_late()
            return
        part = session.read(stats)
        if part is None:
            self._note_unresolved(session)
            place = self.steps.place(
                session.hello.rank, stats.part, stats.step, self.open_frames.last_closed
            )
            if place is not None:
                self.open_gains.note(session.hello.rank, place)
            return
        yield from self._take_in(
            self.steps.take(
                session.hello.rank,
                stats.part,
                stats.step,
                (stats, part),
                self.open_frames.last_closed,
            ),
            now_ns,
            rules,
            stats.step - before,
        )

    def _take_in(
        self, placed: Placed[_TakenPart], now_ns: int, rules: Rules, num_steps: int = 1
    ) -> Iterator[Alert]:
        """Put records into the frames of their steps, and look at those that are late."""
        for rank, place, (stats, part) in placed.records:
            self.open_gains.note(rank, place)  # it may measure none
            if place > self.place:
                yield from self._advance(place, stats, num_steps, now_ns, rules)
            taken = self.open_frames.add(
                rank, part, step=place, now_ns=now_ns, part=stats.part, parts=stats.parts
            )
            if not taken:
                yield from self._add_late(place, part, now_ns, rules)
        for step, (_, part) in placed.refuted:
            yield from self._add_late(position(self.epoch, step), part, now_ns, rules)

    def _advance(
        self, place: int, stats: Stats, num_steps: int, now_ns: int, rules: Rules
    ) -> Iterator[Alert]:
        """Note a step that is newer than all before, and how long it took to come."""
        claimed = known_seconds(stats.scalars.get(Scalar.STEP_TIME_S))
        claimed = None if claimed is None else known_seconds(claimed * max(num_steps, 1))
        seen = None if self.was_away else (now_ns - self.stepped_ns) / 1e9
        known = [gap for gap in (claimed, seen) if gap is not None]
        if known and self.place >= 0:
            self.pace.add(max(known), training=not self.is_evaluating)
        self.place, self.stepped_ns = place, now_ns
        self.is_evaluating = self.was_away = False
        if self.is_troubled:
            yield from self.judge_liveness(now_ns, rules)

    def _add_late(self, place: int, part: RankPart, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Count a record that no frame takes, and look whether anything in it is non-finite."""
        self._note_late()
        loss = part.scalars.get(Scalar.LOSS, 0.0)
        if not part.nonfinite.any() and np.isfinite(loss):
            return
        merged = merge(
            Gathered(step_of(place), -1, now_ns, (part,)), len(self.layers.names), self.world
        )
        late = LateFrame(**{own.name: getattr(merged, own.name) for own in fields(merged)})
        if self.first_bad is None or place < self._first_bad_at:
            self.first_bad = find_first_bad(late, self._describe().names) or self.first_bad
            self._first_bad_at = place
        yield from self.evaluate(late, rules)

    def _note_late(self) -> None:
        self.num_late += 1
        self.late.add(self.num_frames)

    def _note_unresolved(self, session: Session) -> None:
        session.num_unresolved += 1
        self.unresolved.add(self.num_frames)

    def add_gains(self, session: Session, gains: Gains, received_ns: int) -> None:
        """Take in one rank's gains of one step."""
        rank = session.hello.rank
        own = RankGains(rank, gains.blocks, gains.norm_type, numbers(gains.norms))
        place = (
            None
            if self.retired
            else self.steps.place(rank, GAINS, gains.step, self.open_gains.last_closed)
        )
        if place is None or not self.open_gains.add(rank, own, step=place, now_ns=received_ns):
            self._note_late()

    def add_loss(
        self, session: Session, first: int, last: int, now_ns: int, rules: Rules
    ) -> Iterator[Alert]:
        """Note that records of a session are lost."""
        after = session.last_step if session.last_step >= 0 else None
        lost = LostRange(first, last, after)
        session.losses.add(lost)
        self.lost.add(self.num_frames, lost.count)
        yield from self.evaluate(DeclaredLoss(session.hello.rank, lost, now_ns), rules)

    def close_frames(self, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Close the frames that are due and evaluate them."""
        if self.waiting:
            young = now_ns - max(self.started_ns, self.resumed_ns) < ATTACH_GRACE_NS
            awaits_others = young and len(self.sessions) < self.world
            yield from self._close(self._alive, now_ns, rules, awaits_others=awaits_others)

    def retire(self, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Close open frames, and free what only an attempt that goes on needs."""
        for rank in self.sessions:
            placed = self.steps.release(rank, self.open_frames.last_closed, alone=False)
            yield from self._take_in(placed, now_ns, rules)
        yield from self._close((), now_ns, rules)
        self.retired = True
        self.window, self.outputs, self.baselines = Window(1), OutputHistory(), Baselines()
        self.last_frame, self.last_flags, self.last_gains = None, None, None
        self.layers, self._context = Layers(), None
        self.noise_scale = NoiseScale(1)
        self.memories, self._rules = Memories(), None
        for session in self.sessions.values():
            session.manifests.clear()

    def resize_window(self, steps: int) -> None:
        """Let the window hold another number of frames from now on."""
        self.window = self.window.resized(steps)
        self._context = None
        for recent in (self.late, self.lost, self.unresolved):
            recent.frames = steps

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
            "liveness": self._liveness_state(layouts),
            "layouts": layouts.states,  # which those above have filled
        }

    def _liveness_state(self, layouts: LayoutTable) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _LIVENESS},
            "place": pack_integer(self.place),
            "first_bad_at": pack_integer(self._first_bad_at),
            "pace": self.pace.state_dict(),
            "recent": [own.state_dict() for own in (self.late, self.lost, self.unresolved)],
            "steps": self.steps.state_dict(
                lambda item: [_plain(item[0]), item[1].state_dict(layouts)]
            ),
        }

    def _restore_liveness(self, state: Mapping[str, Any], layouts: Sequence[Layout]) -> None:
        """Restore what earlier versions did not save, as far as it is known then."""
        own = state.get("liveness")
        self._behind = {rank for rank, own in self.sessions.items() if own.behind_frames}
        if own is None:
            last = {rank: own.last_step for rank, own in self.sessions.items()}
            self.steps.begin_at({rank: step for rank, step in last.items() if step >= 0})
            self.place = max(last.values(), default=-1)
            self.heard_ns = max((own.last_ns for own in self.sessions.values()), default=0)
            self.stepped_ns = self.heard_ns = max(self.heard_ns, self.started_ns)
            if self.first_bad is not None:
                self._first_bad_at = self.first_bad.step
            return
        for name in _LIVENESS:
            setattr(self, name, own[name])
        self.place, self._first_bad_at = int(own["place"]), int(own["first_bad_at"])
        self.pace.load_state_dict(own["pace"])
        for recent, counts in zip(
            (self.late, self.lost, self.unresolved), own["recent"], strict=True
        ):
            recent.load_state_dict(counts)
        self.steps.load_state_dict(
            own["steps"],
            lambda item: (_stats_of(item[0]), RankPart.from_state_dict(item[1], layouts)),
        )

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
        attempt = cls(run, state["number"], hello, state["started_ns"], state["window"]["capacity"])
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
        attempt._restore_liveness(state, layouts)
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

    def _close(
        self, alive: Collection[int], now_ns: int, rules: Rules, *, awaits_others: bool = False
    ) -> Iterator[Alert]:
        for gathered in self.open_frames.close(
            alive, now_ns, self.world, awaits_others=awaits_others
        ):
            if gathered.epoch != self.epoch:
                self.epoch, self._context = gathered.epoch, None
                self.baselines.resume()
            frame = merge(gathered, len(self.layers.names), self.world)
            was_bad = self.first_bad is not None
            yield from self._add_frame(frame, rules)
            if self.first_bad is not None and not was_bad:
                self._first_bad_at = position(self.epoch, self.first_bad.step)
            self._note_behind(frame)
        for gains in self.open_gains.close(alive, now_ns, self.world, awaits_others=awaits_others):
            self.last_gains = merge_gains(gains)
            yield from self.evaluate(self.last_gains, rules)

    def _note_behind(self, frame: Frame) -> None:
        """Count the frames that closed well ahead of a rank."""
        if frame.coverage == 1.0:
            for rank in self._behind:
                self.sessions[rank].behind_frames = 0
            self._behind.clear()
            return
        for rank in self._alive:
            session = self.sessions[rank]
            if session.last_step <= frame.step - BEHIND_STEPS:
                session.behind_frames += 1
                self._behind.add(rank)
            elif session.behind_frames:
                session.behind_frames = 0
                self._behind.discard(rank)

    def evaluate(self, observation: object, rules: Rules) -> Iterator[Alert]:
        """Hand an observation to the rules that take its type."""
        rules = self._follow(rules)
        context = self._describe()
        flags = find_flags(observation, rules, context)
        yield from self.active_alerts.update(observation, flags, rules, context)

    def _add_frame(self, frame: Frame, rules: Rules) -> Iterator[Alert]:
        rules = self._follow(rules)
        context = self._describe()
        flags = find_flags(frame, rules, context)
        if self.first_bad is None:
            self.first_bad = find_first_bad(frame, context.names)
        yield from self.active_alerts.update(frame, flags, rules, context)
        self.window.add(frame, frame_score(frame, flags, rules))
        self.baselines.add(frame, context.names)
        self.outputs.add(frame)
        self.noise_scale.add(frame)
        # Without the records: nobody asks for them any more, and those of many ranks are large.
        self.last_frame = frame.let_records_go()
        self.last_flags = flags
        self.num_frames += 1
        self.updated_ns = frame.received_ns

    def _follow(self, rules: Rules) -> Rules:
        """Return those of the rules that watch this run."""
        if rules is not self._rules:
            self._rules, self._in_force = rules, rules.watching(self.run)
            self._context = None
            self.memories.follow(self._in_force.root.items())
        return self._in_force

    def _describe(self) -> Context:
        if self._context is None:
            context = Context(
                run=self.run,
                attempt=self.number,
                names=tuple(self.layers.names),
                groups=all_groups(self.layers.groups(), len(self.layers.names)),
                window=self.window,
                outputs=self.outputs,
                baselines=self.baselines,
                memories=self.memories,
                epoch=self.epoch,
                numel=np.array(self.layers.numel, dtype=np.float64),
            )
            self._context = self._limits.limit(context, self._in_force)
        return self._context


def _plain(stats: Stats) -> list[Any]:
    """Return what is kept of a record that is held, beside its numbers."""
    step_time = stats.scalars.get(Scalar.STEP_TIME_S)
    return [stats.manifest_id, stats.step, stats.part, stats.parts, step_time]


def _stats_of(plain: Sequence[Any]) -> Stats:
    manifest_id, step, part, parts, step_time = plain
    scalars = {} if step_time is None else {Scalar.STEP_TIME_S.value: step_time}
    return Stats(manifest_id=manifest_id, step=step, part=part, parts=parts, scalars=scalars)
