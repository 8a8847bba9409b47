"""The closed frames of one attempt: what is kept of them, and what the rules say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from gradwatch_server.core.alerting.active import ActiveAlerts
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.attribution import was_skipped
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
from gradwatch_server.core.attempt.predecessor import Predecessor
from gradwatch_server.core.frames.assembler import Gathered
from gradwatch_server.core.frames.closed_frame import ClosedFrame, FrameRecorder
from gradwatch_server.core.frames.frame import Frame, LateFrame, RankPart
from gradwatch_server.core.frames.gains import GainFrame, RankGains, merge_gains
from gradwatch_server.core.frames.layers import Layers
from gradwatch_server.core.frames.layout import Layout, LayoutTable
from gradwatch_server.core.frames.merging import merge
from gradwatch_server.core.frames.outputs import OutputHistory
from gradwatch_server.core.frames.step_order import position, step_of
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.judge.judge import Judge
from gradwatch_server.core.noise_scale import NoiseScale
from gradwatch_server.core.state_codec import decode, encode


class ClosedFrames:
    """Merges the frames of one attempt, hands them to the rules, and keeps what later ones need.

    Attributes:
        layers: Those that the frames have rows for.
        window: The newest frames.
        outputs: What the outputs of modules were in them.
        judge: Series and records of them.
        noise_scale: The gradient noise scale of them.
        active_alerts: What the rules found, in frames and in all else that they were handed.
        memories: What the rules remember of it.
        first_bad: Where something was non-finite first.
        first_bad_at: Position of that step.
        last_frame: The newest frame, without its records.
        last_flags: What the rules raised in it.
        last_gains: The newest gains.
        num_frames: How many there were.
        epoch: How often the steps had gone back.
        predecessor: The attempt before, until the first frame tells whether this one goes on from
            it.
        recorder: What keeps the history, None for nothing that does.
    """

    def __init__(self, run: str, attempt: int, world: int, steps: int) -> None:
        """Begin before the first frame.

        Args:
            run: Name of the run.
            attempt: Which of its attempts this is.
            world: Ranks of the job.
            steps: How many frames the window holds.
        """
        self._run, self._attempt, self._world = run, attempt, world
        self.layers = Layers()
        self.window = Window(steps)
        self.outputs = OutputHistory()
        self.judge = Judge()
        self.noise_scale = NoiseScale(steps)
        self.active_alerts = ActiveAlerts()
        self.memories = Memories()
        self.first_bad: FirstBad | None = None
        self.first_bad_at = -1
        self.last_frame: Frame | None = None
        self.last_flags: Flags | None = None
        self.last_gains: GainFrame | None = None
        self.num_frames = 0
        self.epoch = 0
        self.predecessor: Predecessor | None = None
        self.recorder: FrameRecorder | None = None
        self._context: Context | None = None
        self._limits = LimitedRules()
        self._rules: Rules | None = None  # those last in force, for all runs
        self._in_force = Rules()  # those of them that watch this run

    def note_layers(self) -> None:
        """Note that layers have been declared."""
        self._context = None

    def add(self, gathered: Gathered[RankPart], rules: Rules) -> Iterator[Alert]:
        """Merge a step, evaluate it and keep it as `last_frame`."""
        if gathered.epoch != self.epoch:
            self.epoch, self._context = gathered.epoch, None
            self.judge.resume()
        if self.predecessor is not None:
            self._take_over(self.predecessor, gathered.step)
        frame = merge(gathered, len(self.layers.names), self._world)
        rules = self._follow(rules)
        context = self._describe()
        self.judge.add(frame, context.names, context.numel, rules.false_alerts_per_100k_steps)
        flags = find_flags(frame, rules, context)
        if self.first_bad is None:
            self.first_bad = find_first_bad(frame, context.names)
            if self.first_bad is not None:
                self.first_bad_at = position(self.epoch, self.first_bad.step)
        yield from self.active_alerts.update(frame, flags, rules, context)
        score = frame_score(frame, flags, rules)
        self.window.add(frame, score)
        self.outputs.add(frame)
        self.noise_scale.add(frame)
        if self.recorder is not None:
            self._record(frame, score, self.recorder)
        # Without the records: nobody asks for them any more, and those of many ranks are large.
        self.last_frame = frame.let_records_go()
        self.last_flags = flags
        self.num_frames += 1

    def _record(self, frame: Frame, score: float, recorder: FrameRecorder) -> None:
        noise_scale = self.noise_scale.at(frame.step)
        skipped = was_skipped(frame)
        closed = ClosedFrame(frame, self.epoch, score, skipped, noise_scale, self.layers)
        recorder.add(self._run, self._attempt, closed)

    def add_gains(self, gathered: Gathered[RankGains], rules: Rules) -> Iterator[Alert]:
        """Merge the gains of a step and evaluate them."""
        self.last_gains = merge_gains(gathered)
        if self.recorder is not None:
            recorder, epoch = self.recorder, gathered.epoch
            recorder.add_gains(self._run, self._attempt, self.last_gains, epoch)
        yield from self.evaluate(self.last_gains, rules)

    def add_late(self, part: RankPart, place: int, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Look whether anything is non-finite in a record that no frame takes.

        Args:
            part: What it says.
            place: Position of its step.
            now_ns: The time it is.
            rules: Those in force.
        """
        merged = merge(
            Gathered(step_of(place), -1, now_ns, (part,)), len(self.layers.names), self._world
        )
        late = LateFrame(**{own.name: getattr(merged, own.name) for own in fields(merged)})
        if self.first_bad is None or place < self.first_bad_at:
            self.first_bad = find_first_bad(late, self._describe().names) or self.first_bad
            self.first_bad_at = place
        yield from self.evaluate(late, rules)

    def evaluate(self, observation: object, rules: Rules) -> Iterator[Alert]:
        """Hand an observation to the rules that take its type."""
        rules = self._follow(rules)
        context = self._describe()
        flags = find_flags(observation, rules, context)
        yield from self.active_alerts.update(observation, flags, rules, context)

    def retire(self) -> None:
        """Free what only frames to come would need; alerts and `first_bad` stay."""
        self.window, self.outputs, self.judge = Window(1), OutputHistory(), Judge()
        self.last_frame, self.last_flags, self.last_gains = None, None, None
        self.layers, self._context = Layers(), None
        self.noise_scale = NoiseScale(1)
        self.memories, self._rules, self.predecessor = Memories(), None, None

    def resize_window(self, steps: int) -> None:
        """Let the window hold another number of frames from now on."""
        self.window.resize(steps)
        self._context = None

    def _take_over(self, predecessor: Predecessor, step: int) -> None:
        """Begin with what was usual before, if the first step shows that this goes on from it."""
        known = predecessor.judge_for(self.layers.names, self._world, step)
        if known is not None:
            self.judge, self._context = known, None
        self.predecessor = None

    def as_predecessor(self) -> Predecessor | None:
        """Return what an attempt that begins now may take over, None if nothing is known yet."""
        if self.last_frame is None:
            return self.predecessor
        names = tuple(self.layers.names)
        judge = self.judge.rearranged(names, names)
        return Predecessor(names, self._world, self.last_frame.step, judge)

    def _follow(self, rules: Rules) -> Rules:
        """Return those of the rules that watch this run."""
        if rules is not self._rules:
            self._rules, self._in_force = rules, rules.watching(self._run)
            self._context = None
            self.memories.follow((own.name, own.memory) for own in self._in_force.root.values())
        return self._in_force

    def _describe(self) -> Context:
        if self._context is None:
            context = Context(
                run=self._run,
                attempt=self._attempt,
                names=tuple(self.layers.names),
                groups=all_groups(self.layers.groups(), len(self.layers.names)),
                window=self.window,
                outputs=self.outputs,
                judge=self.judge,
                memories=self.memories,
                epoch=self.epoch,
                numel=np.array(self.layers.numel, dtype=np.float64),
            )
            self._context = self._limits.limit(context, self._in_force)
        return self._context

    def state_dict(self, layouts: LayoutTable) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {
            "layers": self.layers.state_dict(),
            "window": encode(self.window),
            "outputs": self.outputs.state_dict(layouts),
            "judge": self.judge.state_dict(),
            "noise_scale": self.noise_scale.state_dict(),
            "book": self.active_alerts.state_dict(),
            "memories": self.memories.state_dict(),
            "first_bad": asdict(self.first_bad) if self.first_bad else None,
            "frame": self.last_frame.state_dict() if self.last_frame else None,
            "flags": None if self.last_flags is None else flags_state_dict(self.last_flags),
            "gains": self.last_gains.state_dict() if self.last_gains else None,
            "num_frames": self.num_frames,
            "predecessor": self.predecessor.state_dict() if self.predecessor else None,
        }

    def load_state_dict(
        self, state: Mapping[str, Any], layers: Layers, layouts: Sequence[Layout]
    ) -> None:
        """Take over what `state_dict` described.

        Args:
            state: What it described.
            layers: Those it has rows for.
            layouts: What it numbered.
        """
        self.layers = layers
        self.window = decode(state["window"], Window)
        self.outputs = OutputHistory.from_state_dict(state["outputs"], layouts)
        self.judge = Judge.from_state_dict(state["judge"], self.layers.names)
        self.noise_scale = NoiseScale.from_state_dict(state["noise_scale"], self.window.capacity)
        self.active_alerts = ActiveAlerts.from_state_dict(state["book"])
        self.memories = Memories(state["memories"])
        first_bad, frame = state["first_bad"], state["frame"]
        flags, gains = state["flags"], state["gains"]
        self.first_bad = FirstBad(**first_bad) if first_bad else None
        self.last_frame = Frame.from_state_dict(frame) if frame else None
        self.last_flags = None if flags is None else flags_from_state_dict(flags)
        self.last_gains = GainFrame.from_state_dict(gains) if gains else None
        self.num_frames = state["num_frames"]
        predecessor = state["predecessor"]
        self.predecessor = Predecessor.from_state_dict(predecessor) if predecessor else None
