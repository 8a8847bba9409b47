"""What is usual: running statistics that one outlier hardly moves, the same on every machine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.alerting.baselines.baselines import Baselines
from gradwatch_server.core.alerting.baselines.hits import Hits
from gradwatch_server.core.alerting.baselines.judgement import FIRST_MODULE, LOSS, TOTAL
from gradwatch_server.core.judge.logarithm import natural_log
from gradwatch_server.core.judge.modules import Modules
from gradwatch_server.core.alerting.baselines.running import PEAK_FRAMES, RunningStatistics
from tests.support.core import frame_of, part_of

NAN = math.nan


def feed(running: RunningStatistics, *samples: float) -> None:
    floor = np.full(len(running), 0.1)
    for sample in samples:
        running.add(np.array([sample]), running.deviation(floor))


def one() -> RunningStatistics:
    running = RunningStatistics()
    running.fit(1)
    return running


def test_the_logarithm_is_that_of_the_library_to_two_units_of_the_last_place() -> None:
    random = np.random.default_rng(0)
    values = np.exp(random.uniform(-700.0, 700.0, 20_000))
    values = np.concatenate([values, 1.0 + random.normal(0.0, 1e-6, 2_000), [5e-324, 1.79e308]])

    ours, theirs = natural_log(values), np.log(values)
    off = np.abs(ours - theirs) / np.maximum(np.spacing(np.abs(theirs)), 2.0**-53)
    assert off.max() <= 2.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, NAN])
def test_what_has_no_logarithm_has_none(value: float) -> None:
    assert math.isnan(natural_log(np.array([value]))[0])


def test_layers_with_one_name_up_to_the_last_dot_are_a_module() -> None:
    """New layers join the modules that there are; a place is never given twice."""
    modules = Modules()
    modules.extend(["a.weight", "a.bias", "scale"])
    modules.extend(["a.weight", "a.bias", "scale", "b.weight", "a.mask"])

    assert modules.names == ["a", "scale", "b"]
    assert modules.of_layer.tolist() == [0, 0, 1, 2, 0]


@pytest.mark.parametrize("scale", [1.0, 1e300, 1e-300])
def test_the_norm_of_a_module_is_that_of_its_layers_together(scale: float) -> None:
    modules = Modules()
    modules.extend(["a.weight", "a.bias", "b.weight", "c.weight", "c.bias"])
    norms = modules.norms(np.array([3.0, 4.0, NAN, 0.0, 2.0]) * scale)

    assert norms[[0, 2]] == pytest.approx(np.array([5.0, 2.0]) * scale, rel=1e-12)
    assert math.isnan(norms[1])


def test_one_outlier_hardly_moves_what_is_usual() -> None:
    """x 100 once: the mean by a tenth of a deviation, the largest of late by half."""
    running = one()
    feed(running, *np.random.default_rng(1).normal(0.0, 0.2, 100))
    mean, peak = float(running.mean[0]), float(running.peak[0])
    feed(running, math.log(100.0))

    assert abs(running.mean[0] - mean) < 0.1 * 0.2
    assert running.peak[0] == pytest.approx(peak + math.log(1.5))


def test_a_lasting_change_is_learnt() -> None:
    running = one()
    feed(running, *np.random.default_rng(1).normal(0.0, 0.2, 100))
    feed(running, *np.random.default_rng(2).normal(math.log(30.0), 0.2, 100))

    assert running.mean[0] == pytest.approx(math.log(30.0), abs=0.7)


def test_the_largest_of_late_is_forgotten() -> None:
    running = one()
    feed(running, *[0.0] * 40, 0.3, *[0.0] * (PEAK_FRAMES - 17))
    assert running.peak[0] == pytest.approx(0.3)
    feed(running, *[0.0] * 32)
    assert running.peak[0] == 0.0


def test_a_series_that_is_mostly_absent_is_not_known() -> None:
    """Enough samples are not enough: half of the last 64 frames must have one."""
    running = one()
    feed(running, *[0.0] * 40)
    assert running.is_known()[0]
    feed(running, *[NAN] * 33)
    assert not running.is_known()[0]
    feed(running, *[0.0] * 40)
    assert running.is_known()[0]


def test_what_is_restored_goes_on_the_same() -> None:
    """Bit for bit, in the middle of a block, with a module that came late."""
    random = np.random.default_rng(3)

    def frames(first: int, last: int) -> list[Any]:
        return [
            frame_of(
                part_of(
                    np.exp(random.normal(0.0, 0.3, 3 if step < 20 else 4)),
                    scalars={"loss": float(np.exp(random.normal()))},
                ),
                step=step,
            )
            for step in range(first, last)
        ]

    names = ["a.w", "a.b", "b.w", "c.w"]
    ours = Baselines()
    for frame in frames(0, 57):
        ours.add(frame, names[: len(frame.present)])
    theirs = Baselines.from_state_dict(ours.state_dict())
    for frame in frames(57, 400):
        one, other = ours.judge(frame, names), theirs.judge(frame, names)
        for field in ("samples", "mean", "deviation", "peak", "is_known"):
            assert getattr(one, field).tobytes() == getattr(other, field).tobytes()
        ours.add(frame, names)
        theirs.add(frame, names)


def test_a_frame_that_is_not_finite_teaches_nothing() -> None:
    baselines = Baselines()
    for step in range(40):
        baselines.add(frame_of(part_of([1.0, 2.0]), step=step), ["a", "b"])
    before = baselines.state_dict()["running"]["mean"]
    baselines.add(frame_of(part_of([NAN, 500.0]), step=40), ["a", "b"])

    assert baselines.state_dict()["running"]["mean"] == before


def test_a_loss_below_zero_is_judged_as_it_is() -> None:
    baselines = Baselines()
    for step, loss in enumerate([*[2.0] * 40, -1.0]):
        frame = frame_of(part_of([1.0], scalars={"loss": loss}), step=step)
        judgement = baselines.judge(frame, ["a"])
        baselines.add(frame, ["a"])

    assert not judgement.is_log_loss
    assert judgement.samples[LOSS] == -1.0
    assert not judgement.is_known[LOSS]
    assert judgement.samples[TOTAL] == judgement.samples[FIRST_MODULE] == 0.0


@pytest.mark.parametrize(
    "losses",
    [(-1e308, 1e308), (-1.0, 1e308, -1e308), (-5e-324, 1e308), (0.0, -1e-310, 1e308)],
)
def test_no_loss_leaves_the_range_of_numbers(losses: tuple[float, ...]) -> None:
    baselines = Baselines()
    for step in range(40):
        loss = losses[min(step, len(losses) - 1)]
        frame = frame_of(part_with_loss(part_of, loss), step=step)
        judgement = baselines.judge(frame, ["a"])
        if step:
            assert math.isfinite(judgement.z[LOSS])
        baselines.add(frame, ["a"])
    assert math.isfinite(baselines.judge(frame, ["a"]).mean[LOSS])


def part_with_loss(make_part: Any, loss: float) -> Any:
    return make_part([1.0], scalars={"loss": loss})


def test_hits_are_counted_over_the_last_frames() -> None:
    hits = Hits()
    told = [bool(hits.add(np.array([hit == 1]), 3, 4)[0]) for hit in (1, 0, 1, 1, 0, 1, 1)]

    assert told == [False, False, False, True, False, True, True]
    assert hits.add(np.array([True, True]), 3, 4).tolist() == [True, False]
