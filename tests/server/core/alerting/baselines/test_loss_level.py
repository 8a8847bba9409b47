"""The level of the loss: what noise, schedules and faults do to the mean of 16 frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import repeat

import msgpack
import numpy as np
import pytest

from gradwatch_server.core.alerting.baselines.loss_level import LossLevel, LossRise
from gradwatch_server.core.alerting.baselines.rates import RateChange, Rates
from gradwatch_server.core.alerting.baselines.running import RunningStatistics

HEALTHY = 400
LIMIT = 5.0

Noise = Callable[[np.random.Generator, int], Sequence[float]]


class Losses:
    """Logarithms of losses, each beside what was usual before it."""

    def __init__(self) -> None:
        self.level = LossLevel()
        self._running = RunningStatistics()
        self._running.fit(1)
        self._step = -1

    def add(self, sample: float, lr: float | None = None) -> LossRise:
        self._step += 1
        deviation = self._running.deviation(0.1)
        usual = float(self._running.mean[0]), float(deviation[0])
        known = usual if self._running.is_known()[0] else None
        rise = self.level.rise(self._step, sample, known, lr)
        self.level.add(self._step, sample, known, lr)
        self._running.add(np.array([sample]), deviation)
        return rise

    def told(self, samples: Sequence[float], rates: Sequence[float] | None = None) -> list[int]:
        """Return which of the samples are over the limit."""
        lrs = repeat(None) if rates is None else rates
        rises = [self.add(*each) for each in zip(samples, lrs, strict=False)]
        return [i for i, rise in enumerate(rises) if rise.exceeds(LIMIT)]


def white(random: np.random.Generator, number: int) -> Sequence[float]:
    samples: list[float] = random.normal(0.0, 0.2, number).tolist()
    return samples


def wandering(random: np.random.Generator, number: int) -> Sequence[float]:
    samples, last = [], 0.0
    for noise in random.normal(0.0, 0.05, number).tolist():
        last = 0.98 * last + noise
        samples.append(last)
    return samples


def heavy(random: np.random.Generator, number: int) -> Sequence[float]:
    samples: list[float] = (0.3 * random.standard_t(3.0, number)).tolist()
    return samples


def falling(random: np.random.Generator, number: int) -> Sequence[float]:
    return [sample - 0.001 * i for i, sample in enumerate(white(random, number))]


@pytest.mark.slow
@pytest.mark.parametrize("noise", [white, wandering, heavy, falling])
def test_noise_is_no_rise(noise: Noise) -> None:
    assert Losses().told(noise(np.random.default_rng(0), 10_000)) == []


@pytest.mark.slow
def test_a_small_rise_that_lasts_is_one_and_says_where_it_began() -> None:
    errors, delays = [], []
    for seed in range(20):
        random, losses = np.random.default_rng(seed), Losses()
        assert losses.told(white(random, HEALTHY)) == []
        rises = [losses.add(sample + 0.4) for sample in white(random, 24)]
        first = next(i for i, rise in enumerate(rises) if rise.exceeds(LIMIT))
        delays.append(first)
        errors.append(rises[first].began - HEALTHY)

    assert np.median(delays) <= 12
    assert np.median(np.abs(errors)) <= 1
    assert np.abs(errors).max() <= 6


def test_one_step_is_no_level() -> None:
    random, losses = np.random.default_rng(1), Losses()
    losses.told(white(random, HEALTHY))

    assert losses.told([10.0, *white(random, 40)]) == []


def test_a_level_that_comes_again_and_again_is_no_news() -> None:
    """A loss that goes up and down by turns, over 100 steps each."""
    random, losses = np.random.default_rng(2), Losses()
    assert losses.told(
        [s + (0.5 if i // 100 % 2 else 0.0) for i, s in enumerate(white(random, 200))]
    )
    samples = [s + (0.5 if i // 100 % 2 else 0.0) for i, s in enumerate(white(random, 2_000))]

    assert losses.told(samples) == []


def test_a_loss_that_rises_with_the_rate_is_not_told() -> None:
    """A restart to a rate that was there before, or a step up by three."""
    for before, after in ((0.001, 0.1), (0.1, 0.3)):
        random, losses = np.random.default_rng(3), Losses()
        losses.told(white(random, 300), [0.1] * 300)
        losses.told(white(random, HEALTHY), [before] * HEALTHY)

        assert losses.told([s + 1.0 for s in white(random, 100)], [after] * 100) == []


@pytest.mark.slow
def test_a_rate_that_never_was_needs_less() -> None:
    """Six tenths of the limit, and as long as the rate is new."""
    rise = 0.2

    def told(rate: float) -> list[list[int]]:
        found = []
        for seed in range(20):
            random, losses = np.random.default_rng(seed), Losses()
            losses.told(white(random, HEALTHY), [0.1] * HEALTHY)
            found.append(losses.told([s + rise for s in white(random, 20)], [rate] * 20))
        return found

    assert sum(map(bool, told(3.0))) >= 3 + sum(map(bool, told(0.1)))
    random, losses = np.random.default_rng(0), Losses()
    losses.told(white(random, HEALTHY), [0.1] * HEALTHY)
    assert losses.told(white(random, 100), [3.0] * 100) == []  # the rate by itself is nothing


def test_a_rise_with_few_frames_before_it_is_not_judged() -> None:
    assert Losses().told([*white(np.random.default_rng(4), 60), *[2.0] * 16]) == []
    losses = Losses()
    losses.told(white(np.random.default_rng(5), HEALTHY))
    assert losses.told([math.nan] * 40) == []


def test_a_restored_level_goes_on_the_same() -> None:
    random, losses = np.random.default_rng(6), Losses()
    losses.told(white(random, HEALTHY), [0.1] * HEALTHY)
    rises = [s + 0.5 for s in white(random, 16)]
    losses.told(rises[:8], [0.2] * 8)
    plain = msgpack.unpackb(msgpack.packb(losses.level.state_dict()))
    other = LossLevel()
    other.load_state_dict(plain)

    ask = (HEALTHY + 8, rises[8], (0.0, 0.2), 0.2)
    assert other.rise(*ask) == losses.level.rise(*ask)
    assert other.rise(*ask).errors > 0.0
    assert other.state_dict() == losses.level.state_dict()


def test_a_warm_up_rises_and_is_never_unheard_of() -> None:
    rates = Rates()
    seen = set()
    for step in range(2_000):
        seen.add(rates.change(0.001 * (step + 1)))
        rates.add(0.001 * (step + 1))

    assert seen == {RateChange.NONE, RateChange.ROSE}


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (0.1, 0.1, RateChange.NONE),
        (0.1, 0.01, RateChange.NONE),
        (0.1, None, RateChange.NONE),
        (0.1, 0.0, RateChange.NONE),
        (0.1, 0.3, RateChange.ROSE),
        (0.1, 0.5, RateChange.UNHEARD_OF),
    ],
)
def test_a_rate_is_compared_with_those_before(
    before: float, now: float | None, change: RateChange
) -> None:
    rates = Rates()
    for _ in range(300):
        rates.add(before)

    assert rates.change(now) is change


def test_a_rate_is_new_for_128_frames() -> None:
    rates = Rates()
    for rate in [0.1] * 300 + [3.0] * 127:
        rates.add(rate)
    assert rates.change(3.0) is RateChange.UNHEARD_OF
    for _ in range(2):
        rates.add(3.0)
    assert rates.change(3.0) is RateChange.ROSE
    for _ in range(300):
        rates.add(3.0)
    assert rates.change(3.0) is RateChange.NONE
