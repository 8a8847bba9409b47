"""The judge of one attempt: all that is known of its series, and the findings of each frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.judge.activity import DEPTH_FRAMES, Absence, Presence, Smallness, Zeros
from gradwatch_server.core.judge.away import DIVERGED, PATIENCE_FRAMES, Away, Divergence
from gradwatch_server.core.judge.detector import (
    FALSE_ALERTS_PER_100K,
    RAW_LOSS,
    RING,
    SCALES,
    Detector,
    SeriesState,
)
from gradwatch_server.core.judge.deviations import (
    LOSS_FEELS,
    SOLVED,
    Deviation,
    DeviationFinder,
    DeviationKind,
)
from gradwatch_server.core.judge.findings import UP, Findings
from gradwatch_server.core.judge.modules import Modules, Shares, norm_of
from gradwatch_server.core.judge.series import (
    FIRST_MODULE,
    LOSS_SERIES,
    PACE,
    TOTAL,
    FrameNumbers,
    SeriesMaker,
    change_point,
    kinds,
    tests,
)
from gradwatch_server.core.state_codec import decode, encode

EARLY_GROWTH: Final = math.log(4.0)
LARGEST: Final = 700.0
"""Logarithm of a number that is finite."""

MAX_AWAY_FRAMES: Final = 256
MAX_AWAY_FRAMES_BETTER: Final = 64
"""Frames after which the new level is the usual one; the fewer where the loss is better."""

HISTORY_FRAMES: Final = 32
SLOW_SCALE: Final = 2
WHOLE_SHARE: Final = 0.5
"""Share of the rise of the total from which on a module rises with it."""

STANDS_OUT: Final = math.log(3.0)
"""Nats that one module must rise more than any other to be the one in which it began."""

TWICE: Final = 2.0
CALM_DEVIATIONS: Final = 3.0
LEAST_DEVIATION: Final = 0.1


@dataclass(slots=True)
class JudgeState:
    """Facts of a judge that outlive a frame."""

    modules: Modules = field(default_factory=Modules)
    shares: Shares = field(default_factory=Shares)
    maker: SeriesMaker = field(default_factory=SeriesMaker)
    series: SeriesState = field(default_factory=SeriesState)
    finder: DeviationFinder = field(default_factory=DeviationFinder)
    zeros: Zeros = field(default_factory=Zeros)
    smallness: Smallness = field(default_factory=Smallness)
    away: Away = field(default_factory=Away)
    presence: Presence = field(default_factory=Presence)
    steps: IndexArray = field(default_factory=lambda: np.full(RING, -1, dtype=np.int64))
    """(RING,) steps of the latest frames."""
    divergence: Divergence = field(default_factory=Divergence)


@dataclass
class Judge:
    """Series, records and counters of one attempt."""

    state: JudgeState = field(default_factory=JudgeState)

    def __post_init__(self) -> None:
        self.findings: Findings | None = None
        self._none: BoolArray = np.zeros(0, dtype=np.bool_)
        self._budget = FALSE_ALERTS_PER_100K

    @cached_property
    def detector(self) -> Detector:
        """Detector of the series that there are; most runs that begin never have a frame."""
        num_series = len(self.state.series.level)
        return self._new_detector(max(0, num_series - FIRST_MODULE) // 2)

    @property
    def modules(self) -> Modules:
        """Names of modules, and the module of each layer."""
        return self.state.modules

    def add(
        self,
        frame: Frame,
        names: Sequence[str],
        numel: FloatArray,
        budget: float = FALSE_ALERTS_PER_100K,
    ) -> Findings:
        """Judge a closed frame and learn from it.

        Callers have silenced numpy: NaN stands for what is absent, and Inf for no record.

        Args:
            numel: (layers,) elements, empty where they are not known.
        """
        self.findings = self._judge(frame, names, numel, budget)
        return self.findings

    def _judge(
        self, frame: Frame, names: Sequence[str], numel: FloatArray, budget: float
    ) -> Findings:
        state, modules = self.state, self.state.modules
        if len(modules.of_layer) < len(names):
            modules.extend(names)
        is_whole = bool(not frame.num_partial and frame.coverage >= 1.0)
        absence = state.presence.add(frame.present, frame.l2_max, is_whole=is_whole)
        norms = self._norms(frame)
        total = norm_of(norms)
        if absence is not None:
            norms, total = self._comparable(norms, absence)
        numbers = self._numbers(frame, norms, total if is_whole else math.nan)
        was_raw = state.maker.is_raw_loss
        values = state.maker.values(numbers)
        is_new = len(values) != len(self.detector.deviation) or budget != self._budget
        if is_new or was_raw != state.maker.is_raw_loss:
            self._budget = budget
            if was_raw != state.maker.is_raw_loss:
                state.series.restart(LOSS_SERIES)
            self.detector = self._new_detector(len(norms))
        state.steps[state.series.num_frames % RING] = frame.step
        self.detector.update(values, state.away.patience)
        state.zeros.add(norms)
        sizes = self.numel(numel) if state.smallness.num_frames < DEPTH_FRAMES else np.zeros(0)
        state.smallness.add(norms, sizes, numbers.loss)
        deviations = state.finder.find(numbers, self.detector, state.maker)
        if deviations:
            quiet = state.zeros.is_dying
            deviations = sorted(
                (each.quiet() if quiet else each for each in deviations),
                key=lambda each: (-each.part, each.series),
            )
        is_quiet = numbers.is_sound and not deviations and not state.away.any
        state.shares.add(frame.l2_max, norms, modules.of_layer, is_quiet=is_quiet)
        return self._find(numbers, values, norms, deviations, is_complete=absence is None)

    def resume(self) -> None:
        """Learn quickly again: the training was interrupted, or its steps went back."""
        self.detector.resume()

    def usual_loss(self) -> float | None:
        """Return the usual loss while no loss was negative, None if it is not known.

        Of a task that is solved it is a share of the first losses: below them all is noise.
        """
        state = self.state
        if state.maker.is_raw_loss or state.series.num_samples[LOSS_SERIES] < HISTORY_FRAMES:
            return None
        level = math.exp(float(self._level_before(LOSS_SERIES, 1)))
        level -= float(state.maker.floor[LOSS_SERIES])
        return max(level, SOLVED * state.finder.first_loss, 0.0)

    def step_of(self, deviation: Deviation) -> int:
        """Return the step at which the change began that a deviation of this frame shows."""
        width = SCALES[deviation.scale]
        state = self.state.series
        newest = state.num_frames - 1
        count = min(4 * width + 16, RING - 1, state.num_frames)
        places = [(newest - back) % RING for back in range(count - 1, -1, -1)]
        series = deviation.series
        samples = np.where(state.present[places, series] > 0, state.samples[places, series], np.nan)
        level = self._level_before(series, min(2 * width + 8, RING - 2))
        if math.isnan(level):
            level = float(self.detector.mean[deviation.scale, series]) - deviation.rise
        first = change_point(
            samples.astype(np.float64), level, float(self.detector.deviation[series]), width
        )
        return int(self.state.steps[places[first]])

    def module_of(self, deviation: Deviation) -> int | None:
        """Return the module in which a deviation began, None where none clearly stands out."""
        sign = 1.0 if deviation.rise > 0.0 else -1.0
        rise = sign * self.detector.rise[deviation.scale]
        whole, apart = rise[FIRST_MODULE::2], rise[FIRST_MODULE + 1 :: 2]
        if len(whole) == 1:
            return 0
        if deviation.kind in (DeviationKind.SPIKE, DeviationKind.GROWTH, DeviationKind.SHRINK):
            module = (deviation.series - FIRST_MODULE) // 2
            others = np.delete(apart, module)
            usual = float(self.detector.rise_deviation[deviation.scale, TOTAL])
            calm = CALM_DEVIATIONS * max(usual, LEAST_DEVIATION)
            rest = float(np.nanmedian(np.delete(whole, module)))
            if apart[module] > _largest(others) + STANDS_OUT and rest < calm:
                return module
        module = int(np.nanargmax(whole)) if not np.isnan(whole).all() else -1
        if module >= 0 and whole[module] > TWICE * max(_largest(np.delete(whole, module)), 0.0):
            return module
        return None

    def usual_norm(self, module: int) -> float | None:
        """Return the usual norm of a module, None without a history."""
        norm = float(self._usual_of_modules()[module])
        return None if math.isnan(norm) else norm

    def usual_norms(self) -> FloatArray:
        """Return (layers,) the L2 norms that were usual before the latest frame, NaN if not known.

        They are the usual norms of the modules, times the usual shares of their layers.
        """
        norms: FloatArray = self._usual_of_modules()[self.modules.of_layer]
        norms *= self.state.shares.values
        return norms

    def usual_spreads(self) -> FloatArray:
        """Return (layers,) factors by which the norm of a layer's module usually leaves its level.

        That is the detector's deviation of single frames, 1.1 at least.
        """
        deviations = self.detector.rise_deviation[0, FIRST_MODULE::2]
        factors: FloatArray = np.exp(np.minimum(deviations, LARGEST))[self.modules.of_layer]
        return factors

    def rearranged(self, names: Sequence[str], others: Sequence[str]) -> Self:
        """Return a copy for an attempt that has the same layers in another order.

        Args:
            names: (layers,) names of the layers that this judge knows.
            others: (layers,) the same names in the other order.
        """
        made = decode(encode(self), type(self))
        modules = Modules()
        modules.extend(names)
        made.state.modules = Modules()
        made.modules.extend(others)
        made._fit(len(modules.names))
        place = {name: number for number, name in enumerate(modules.names)}
        order = np.array([place[name] for name in made.modules.names], dtype=np.int64)
        columns = list(range(FIRST_MODULE))
        for module in order.tolist():
            columns += FIRST_MODULE + 2 * module, FIRST_MODULE + 2 * module + 1
        made.state.series.select(columns)
        made.state.maker.select(order)
        made.state.zeros, made.state.smallness, made.state.away = Zeros(), Smallness(), Away()
        made.state.presence, made.state.shares = Presence(), Shares()
        made.state.smallness.num_frames = HISTORY_FRAMES
        made.detector = made._new_detector(len(order))
        return made

    def _fit(self, num_modules: int) -> None:
        self.state.maker.grow(num_modules)
        self.detector = self._new_detector(num_modules)

    def _new_detector(self, num_modules: int) -> Detector:
        of_series = kinds(num_modules)
        if self.state.maker.is_raw_loss:
            of_series[LOSS_SERIES] = RAW_LOSS
        self.state.away.grow(len(of_series))
        return Detector(self.state.series, of_series, tests(num_modules), self._budget)

    def _norms(self, frame: Frame) -> FloatArray:
        if not frame.has_nonfinite:
            return self.modules.norms(frame.l2_max)
        norms = self.modules.norms(np.where(frame.nonfinite, np.nan, frame.l2_max))
        norms[self.modules.any_of(frame.nonfinite)] = np.nan
        return norms

    def _usual_of_modules(self) -> FloatArray:
        """Return (modules,) the usual norm of each before the latest frame, NaN without one."""
        series = self.state.series
        level = series.levels[(series.num_frames - 2) % RING, FIRST_MODULE::2].astype(np.float64)
        norms: FloatArray = (
            np.exp(np.minimum(level, LARGEST)) - self.state.maker.floor[FIRST_MODULE:]
        )
        return np.maximum(norms, 0.0, out=norms)

    def _comparable(self, norms: FloatArray, absence: Absence) -> tuple[FloatArray, float]:
        """Return norms of modules, NaN of those that miss a layer, and of all that are known.

        Of a layer that is missing, the total has the norm that it had. Where layers have joined or
        left, the series of their modules and of the total begin anew.
        """
        modules, presence = self.modules, self.state.presence
        num_known = (len(self.state.series.level) - FIRST_MODULE) // 2
        changed = np.flatnonzero(modules.any_of(absence.changed)).tolist()
        for module in changed:
            if module < num_known:
                self.state.series.restart(FIRST_MODULE + 2 * module)
                self.state.series.restart(FIRST_MODULE + 2 * module + 1)
        if changed and num_known:
            self.state.series.restart(TOTAL)
        if not np.count_nonzero(absence.missing):
            return norms, norm_of(norms)
        last = np.where(absence.missing, presence.norm, np.nan)
        held = np.hypot(norm_of(norms), norm_of(last))
        norms = norms.copy()
        norms[modules.any_of(absence.missing)] = np.nan
        return norms, float(held)

    def _numbers(self, frame: Frame, norms: FloatArray, total: float) -> FrameNumbers:
        loss = math.nan if frame.loss is None else frame.loss
        lr = math.nan if frame.lr is None else frame.lr
        step_time = math.nan if frame.step_time_s is None else frame.step_time_s
        return FrameNumbers(
            frame.step, norms, total, loss, lr, frame.history, step_time, frame.is_finite
        )

    def numel(self, numel: FloatArray) -> FloatArray:
        """Return (modules,) elements of each, none where those of layers are not known."""
        num = len(self.modules.of_layer)
        if len(numel) < num:
            return np.zeros(0)
        return np.bincount(self.modules.of_layer, weights=numel[:num]).astype(np.float64)

    def _find(
        self,
        numbers: FrameNumbers,
        values: FloatArray,
        norms: FloatArray,
        deviations: Sequence[Deviation],
        *,
        is_complete: bool,
    ) -> Findings:
        away = self.state.away
        is_calm = not away.any and not any(each.is_paged for each in deviations)
        if is_calm:  # nearly always
            rising = falling = high = low = self._no_modules(len(norms))
        else:
            rising, falling = (np.zeros(len(norms), dtype=np.bool_) for _ in range(2))
        for each in deviations:
            if not each.is_paged:
                continue
            rise = self.detector.rise[each.scale]
            before = self.detector.mean[each.scale] - rise
            if each.kind in (DeviationKind.LOSS, DeviationKind.SLOW):
                away.begin(np.array([each.series]), before, rise, 1.0)
                continue
            flagged = rising if each.kind in UP else falling
            modules = self._modules_in(each)
            flagged[modules] = True
            sign = 1.0 if each.kind in UP else -1.0
            away.begin(FIRST_MODULE + 2 * modules, before, rise, sign)
        is_better = bool(self.detector.rise[SLOW_SCALE, LOSS_SERIES] < 0.0)
        away.num_passed *= 1.0 - 1.0 / PATIENCE_FRAMES
        is_loss_high = is_slow = False
        if not is_calm:
            still = np.zeros(len(values), dtype=np.bool_)
            if away.any:
                limit = MAX_AWAY_FRAMES_BETTER if is_better else MAX_AWAY_FRAMES
                still = away.update(values, limit)
            whole, signs = still[FIRST_MODULE::2], away.sign[FIRST_MODULE::2]
            high, low = whole & (signs > 0), whole & (signs < 0)
            is_loss_high, is_slow = bool(still[LOSS_SERIES]), bool(still[PACE])
        loss_part = float(np.maximum.reduce(self.detector.up[:, LOSS_SERIES]))
        young = self.state.series.num_samples[FIRST_MODULE::2] <= HISTORY_FRAMES
        first_loss = 0.0 if self.state.maker.is_raw_loss else self.state.finder.first_loss
        return Findings(
            norms=norms,
            deviations=tuple(deviations),
            rising=rising,
            falling=falling,
            high=high,
            low=low,
            is_calm=is_calm,
            is_complete=is_complete,
            is_loss_high=is_loss_high,
            is_slow=is_slow,
            is_loss_felt=loss_part >= LOSS_FEELS,
            is_diverging=self.state.divergence.add(self.detector.mean[:, LOSS_SERIES], first_loss),
            is_young=young,
            is_early_growth=self._is_early_growth(numbers, values),
        )

    def _no_modules(self, number: int) -> BoolArray:
        """Return (modules,) none; the same array each time."""
        if len(self._none) != number:
            self._none = np.zeros(number, dtype=np.bool_)
            self._none.flags.writeable = False
        return self._none

    def _modules_in(self, deviation: Deviation) -> IndexArray:
        if deviation.kind in (DeviationKind.SPIKE, DeviationKind.GROWTH, DeviationKind.SHRINK):
            return np.array([(deviation.series - FIRST_MODULE) // 2])
        rise = self.detector.rise[deviation.scale, FIRST_MODULE::2]
        modules = np.flatnonzero(rise / deviation.rise > WHOLE_SHARE)
        if not len(modules) and not np.isnan(rise).all():
            modules = np.array([int(np.nanargmax(rise / deviation.rise))])
        return modules.astype(np.int64)

    def _is_early_growth(self, numbers: FrameNumbers, values: FloatArray) -> bool:
        maker = self.state.maker
        if self.state.series.num_frames > HISTORY_FRAMES or not maker.first_count[TOTAL]:
            return False
        usual = float(maker.first_sum[TOTAL] / maker.first_count[TOTAL])
        first_loss = self.state.finder.first_loss
        grows = float(values[TOTAL]) > usual + EARLY_GROWTH and not numbers.loss < first_loss
        return grows or numbers.loss > DIVERGED * first_loss > 0.0

    def _level_before(self, series: int, frames: int) -> float:
        """Return the usual value so many frames before the latest."""
        place = (self.state.series.num_frames - 1 - frames) % RING
        return float(self.state.series.levels[place, series])


def _largest(values: FloatArray) -> float:
    return float(np.fmax.reduce(values, initial=-math.inf))
