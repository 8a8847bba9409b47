"""The gradient noise scale, against gradients whose noise is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.noise_scale import MIN_SAMPLES, NoiseScale, estimate
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_server.core.views.runs import describe_noise_scale
from gradwatch_server.core.views.snapshot import view_run
from tests.support.core import Cluster, frame_of, part_of

RANKS, BATCH, SIZE = 4, 8, 64
LABELS = {"reduction": "mean"}


def reduced_frame(local: FloatArray, step: int = 0, **changes: Any) -> Frame:
    """Make a frame of *local*, (ranks, layers, elements) gradients that are averaged."""
    averaged = np.linalg.norm(local.mean(axis=0), axis=1)
    settings: dict[str, Any] = {"scalars": {"batch_size": float(BATCH)}, "labels": LABELS} | changes
    first = part_of(averaged)
    parts = [
        part_of(averaged, rank=rank, local_l2=np.linalg.norm(own, axis=1), **settings)
        for rank, own in enumerate(local)
    ]
    return frame_of(*(replace(part, layout=first.layout) for part in parts), step=step)


def gradients(random: Any, deviation: float) -> Any:
    signal = np.full((2, SIZE), 4.0 / np.sqrt(2 * SIZE))
    noise = random.normal(0.0, deviation, (RANKS, BATCH, 2, SIZE)).mean(axis=1)
    return signal + noise


@pytest.mark.slow
def test_the_estimates_are_those_of_the_paper() -> None:
    """S is the trace of the covariance of a sample's gradient, G² the signal's squared norm."""
    random = np.random.default_rng(0)
    made = NoiseScale.of(1000)
    for step in range(600):
        made.add(reduced_frame(gradients(random, 0.5), step))
    samples = made.series()
    noise = np.mean([sample.noise for sample in samples])
    signal = np.mean([sample.signal for sample in samples])

    assert noise == pytest.approx(2 * SIZE * 0.25, rel=0.05)
    assert signal == pytest.approx(16.0, rel=0.05)
    assert samples[-1].noise_scale == pytest.approx(2.0, rel=0.2)


def test_it_is_not_known_before_a_hundred_samples() -> None:
    random = np.random.default_rng(0)
    made = NoiseScale.of(1000)
    for step in range(MIN_SAMPLES):
        made.add(reduced_frame(gradients(random, 0.5), step))
    known = [sample.noise_scale is not None for sample in made.series()]

    assert known == [False] * (MIN_SAMPLES - 1) + [True]


@pytest.mark.parametrize(
    "changes",
    [
        {"scalars": {}},
        {"scalars": {"batch_size": 8.0, "collections": 2.0}},
        {"scalars": {"batch_size": 0.0}},
        {"labels": {"reduction": "none"}},
        {"labels": {}},
    ],
)
def test_what_is_missing_makes_no_sample(changes: dict[str, Any]) -> None:
    """Batch sizes, one pass per step, and averaged gradients."""
    local = gradients(np.random.default_rng(0), 0.5)

    assert estimate(reduced_frame(local)) is not None
    assert estimate(reduced_frame(local, **changes)) is None


def test_a_bad_step_makes_no_sample() -> None:
    """Non-finite gradients, and local norms that are not known."""
    local = gradients(np.random.default_rng(0), 0.5)
    local[0, 0, 0] = np.nan

    assert estimate(reduced_frame(local)) is None


def test_the_series_outlives_a_restart() -> None:
    random = np.random.default_rng(0)
    made = NoiseScale.of(10)
    for step in range(20):
        made.add(reduced_frame(gradients(random, 0.5), step))

    again = decode(encode(made), NoiseScale)
    assert again.series() == made.series()
    assert len(again.series()) == 10


def test_the_series_is_shown() -> None:
    job = Cluster(world=2, names=("a",)).start()
    for step in range(MIN_SAMPLES):
        for rank, norm in enumerate((3.0, 5.0)):
            job.stats(rank, step, [3.5], local_l2=[norm], batch_size=4.0, labels=LABELS)
    shown = describe_noise_scale(view_run(job.state.runs[job.run]).noise_scale)

    # mean|g_b|² = 17, |g_B|² = 12.25, b = 4, B = 8
    assert len(shown["series"]) == MIN_SAMPLES
    last = shown["series"][-1]
    assert (last["noise"], last["signal"]) == pytest.approx((38.0, 7.5))
    assert (shown["step"], shown["noise_scale"]) == (MIN_SAMPLES - 1, pytest.approx(38.0 / 7.5))


def test_without_local_norms_there_is_no_series() -> None:
    job = Cluster(world=2, names=("a",)).start()
    job.step(0, 1.0, batch_size=4.0, labels=LABELS)
    shown = describe_noise_scale(view_run(job.state.runs[job.run]).noise_scale)

    assert (shown["step"], shown["noise_scale"], shown["series"]) == (None, None, [])
