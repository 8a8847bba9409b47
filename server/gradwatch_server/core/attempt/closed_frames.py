"""The closed frames of one attempt: what is kept of them, and what the rules say of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, Self

import numpy as np

from gradwatch_server.core.alerting.active import ActiveAlerts
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.attribution import was_skipped
from gradwatch_server.core.alerting.evaluation import Context, all_groups
from gradwatch_server.core.alerting.flags import Flags, find_flags, frame_score
from gradwatch_server.core.alerting.limits import LimitedRules
from gradwatch_server.core.alerting.memory import Memories
from gradwatch_server.core.alerting.origin import FirstBad, find_first_bad
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.frames.assembler import StepRecords
from gradwatch_server.core.frames.closed_frame import ClosedFrame, FrameRecorder
from gradwatch_server.core.frames.frame import Frame, LateFrame, RankRecord
from gradwatch_server.core.frames.gains import GainFrame, RankGains, merge_gains
from gradwatch_server.core.frames.layers import Layers
from gradwatch_server.core.frames.merging import merge
from gradwatch_server.core.frames.outputs import OutputHistory
from gradwatch_server.core.frames.step_order import NOWHERE, Place
from gradwatch_server.core.frames.updates import UpdateHistory
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.judge.judge import Judge
from gradwatch_server.core.noise_scale import NoiseScale
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_wire import Hello
from gradwatch_wire.columns import UPDATE_RMS

NEAR: Final = 2
"""An attempt goes on near a step if it begins between this part of it and this many times it."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """An attempt that was there when another one of its run began."""

    names: tuple[str, ...]
    world: int
    step: int
    num_frames: int
    judge: Judge
    memories: Memories

    def judge_for(self, names: Sequence[str], world: int, step: int) -> Judge | None:
        """Return what is usual in an attempt that goes on where this one stopped, else None.

        It does if it has the same layers and ranks, and begins neither at step 0 nor far from
        where this one stopped. Norms change with the order of magnitude of the step, and
        checkpoints may be far apart: from half of that step to twice it is near.
        """
        is_near = 0 < step <= NEAR * self.step and self.step <= NEAR * step
        if not is_near or world != self.world or set(names) != set(self.names):
            return None
        judge = self.judge.rearranged(self.names, names)
        judge.resume()
        return judge


@dataclass
class ClosedFrames:
    """Closed frames of one attempt: they are merged, judged, and kept as far as later ones need.

    Args:
        expected: Signs of a bug that are meant so, as the job says.
        active_alerts: What the rules found, in frames and in all else that they were handed.
        predecessor: The attempt before, until the first frame tells whether this one goes on from
            it.
        num_bare: Ranks without layers: no frame lacks them.

    Attributes:
        recorder: Receiver of the history, None for none.
    """

    run: str
    attempt: int
    world: int
    expected: tuple[str, ...]
    window: Window
    noise_scale: NoiseScale
    layers: Layers = field(default_factory=Layers)
    outputs: OutputHistory = field(default_factory=OutputHistory)
    updates: UpdateHistory = field(default_factory=UpdateHistory)
    judge: Judge = field(default_factory=Judge)
    active_alerts: ActiveAlerts = field(default_factory=ActiveAlerts)
    memories: Memories = field(default_factory=Memories)
    first_bad: FirstBad | None = None
    first_bad_at: Place = NOWHERE
    last_frame: Frame | None = None
    last_flags: Flags | None = None
    last_gains: GainFrame | None = None
    num_frames: int = 0
    epoch: int = 0
    predecessor: Predecessor | None = None
    num_bare: int = 0

    def __post_init__(self) -> None:
        self.recorder: FrameRecorder | None = None
        self._context: Context | None = None
        self._limits = LimitedRules()
        self._rules: Rules | None = None  # those last in force, for all runs
        self._in_force = Rules()  # those of them that watch this run

    @classmethod
    def of(cls, run: str, attempt: int, hello: Hello, steps: int) -> Self:
        """Return those of an attempt before its first frame; *steps* is the size of the window."""
        window, noise_scale = Window(steps), NoiseScale.of(steps)
        return cls(run, attempt, hello.world, hello.expected, window, noise_scale)

    def record_layers(self) -> None:
        self._context = None

    def add(self, gathered: StepRecords[RankRecord], rules: Rules) -> Iterator[Alert]:
        """Merge a step, evaluate it and keep it as `last_frame`."""
        if gathered.epoch != self.epoch:
            self.epoch, self._context = gathered.epoch, None
            self.judge.resume()
        rules = self._follow(rules)
        if self.predecessor is not None:
            self._adopt(self.predecessor, gathered.step)
        with np.errstate(all="ignore"):  # once: it takes as long as much of what is in it
            frame = self._merge(gathered)
            context = self._describe()
            self.judge.add(frame, context.names, context.numel, rules.false_alerts_per_100k_steps)
        flags = find_flags(frame, rules, context)
        if self.first_bad is None and not frame.is_finite:
            self.first_bad = find_first_bad(frame, context.names)
            if self.first_bad is not None:
                self.first_bad_at = self.epoch, self.first_bad.step
        if flags.raised or self.active_alerts.active:
            yield from self.active_alerts.update(frame, flags, rules, context)
        score = frame_score(frame, flags, rules)
        self.window.add(frame, score)
        if frame.has_outputs:
            self.outputs.add(frame)
        if UPDATE_RMS in frame.measured and not was_skipped(frame):
            self.updates.add(frame)
        if frame.has_local_norms:
            self.noise_scale.add(frame)
        if self.recorder is not None:
            self._record(frame, score, self.recorder)
        # Without the records: nobody asks for them any more, and those of many ranks are large.
        self.last_frame = frame.let_records_go()
        self.last_flags = flags
        self.num_frames += 1

    def _merge(self, gathered: StepRecords[RankRecord]) -> Frame:
        world = max(1, self.world - self.num_bare)
        return merge(gathered, len(self.layers.names), world, self.layers.distribution)

    def _record(self, frame: Frame, score: float, recorder: FrameRecorder) -> None:
        noise_scale = self.noise_scale.at(frame.step)
        skipped = was_skipped(frame)
        after_ns = None if self.last_frame is None else self.last_frame.received_ns
        closed = ClosedFrame(
            frame,
            self.epoch,
            score,
            skipped,
            noise_scale,
            self.layers,
            self.judge.usual_norms(),
            self.judge.usual_spreads(),
            after_ns,
        )
        recorder.add(self.run, self.attempt, closed)

    def add_gains(self, gathered: StepRecords[RankGains], rules: Rules) -> Iterator[Alert]:
        """Merge the gains of a step and evaluate them."""
        self.last_gains = merge_gains(gathered)
        if self.recorder is not None:
            recorder, epoch = self.recorder, gathered.epoch
            recorder.add_gains(self.run, self.attempt, self.last_gains, epoch)
        yield from self.evaluate(self.last_gains, rules)

    def add_late(
        self, part: RankRecord, place: Place, now_ns: int, rules: Rules
    ) -> Iterator[Alert]:
        """Look whether anything is non-finite in a record that no frame takes."""
        with np.errstate(all="ignore"):
            merged = self._merge(StepRecords(place[1], -1, now_ns, (part,)))
        late = LateFrame(**{field_.name: getattr(merged, field_.name) for field_ in fields(merged)})
        if self.first_bad is None or place < self.first_bad_at:
            self.first_bad = find_first_bad(late, self._describe().names) or self.first_bad
            self.first_bad_at = place
        yield from self.evaluate(late, rules)

    def evaluate(self, observation: object, rules: Rules) -> Iterator[Alert]:
        rules = self._follow(rules)
        context = self._describe()
        flags = find_flags(observation, rules, context)
        yield from self.active_alerts.update(observation, flags, rules, context)

    def retire(self) -> None:
        """Free what only frames to come would need; readers see the last ones still."""
        self.window.forget_norms()
        self.outputs, self.updates = OutputHistory(), UpdateHistory()
        self.judge, self.memories = Judge(), Memories()
        self._context, self._rules, self.predecessor = None, None, None

    def forget_frames(self) -> None:
        """Free what readers see of the frames; alerts and `first_bad` stay."""
        self.window, self.noise_scale = Window(1), NoiseScale.of(1)
        self.layers, self._context = Layers(), None
        self.last_frame, self.last_flags, self.last_gains = None, None, None

    def resize_window(self, steps: int) -> None:
        """Let the window hold another number of frames from now on."""
        self.window.resize(steps)
        self._context = None

    def _adopt(self, predecessor: Predecessor, step: int) -> None:
        """Begin with what was usual before, if the first step shows that this goes on from it."""
        known = predecessor.judge_for(self.layers.names, self.world, step)
        if known is not None:
            self.judge, self._context = known, None
            predecessor.memories.update(self._in_force.memories())
            self.memories.resume(predecessor.memories, predecessor.step, predecessor.num_frames)
        self.predecessor = None

    def as_predecessor(self) -> Predecessor | None:
        """Return what an attempt that begins now may take over, None if nothing is known yet."""
        if self.last_frame is None:
            return self.predecessor
        names = tuple(self.layers.names)
        step, count = self.last_frame.step, self.window.count
        judge = self.judge.rearranged(names, names)
        memories = decode(encode(self.memories), Memories)
        return Predecessor(names, self.world, step, count, judge, memories)

    def _follow(self, rules: Rules) -> Rules:
        if rules is not self._rules:
            self._rules, self._in_force = rules, rules.watching(self.run)
            self._context = None
            self.memories.update(self._in_force.memories())
        return self._in_force

    def _describe(self) -> Context:
        if self._context is None:
            context = Context(
                run=self.run,
                attempt=self.attempt,
                names=tuple(self.layers.names),
                groups=all_groups(self.layers.groups(), len(self.layers.names)),
                window=self.window,
                outputs=self.outputs,
                updates=self.updates,
                judge=self.judge,
                memories=self.memories,
                epoch=self.epoch,
                expected=self.expected,
                numel=np.array(self.layers.numel, dtype=np.float64),
                dtypes=tuple(self.layers.dtypes),
                beta2=np.array(self.layers.beta2),
                optimizer=self.layers.optimizer,
            )
            self._context = self._limits.limit(context, self._in_force)
        return self._context
