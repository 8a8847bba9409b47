"""Updates of the last steps: which layer's rose, since when, and not with the learning rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.frames.updates import KEPT_STEPS, Rise, UpdateHistory
from gradwatch_server.core.state_codec import decode, encode
from tests.support.core import Cluster, frame_of, part_of

NAN = float("nan")


def history_of(*updates: list[float], lr: list[float] | None = None) -> UpdateHistory:
    """Steps 0, 8, 16 and so on; each weight has the size 1."""
    made = UpdateHistory()
    names = [f"l{place}" for place in range(len(updates[0]))]
    job = Cluster(names=names).start()
    for place, update in enumerate(updates):
        columns: dict[str, Any] = {"update_rms": update, "weight_rms": [1.0] * len(update)}
        rate = {} if lr is None else {"lr": lr[place]}
        job.stats(
            0, 8 * place, [1.0] * len(update), unchanged=[0.0] * len(update), **columns, **rate
        )
        made.add(job.frame)
    return decode(encode(made), UpdateHistory)


RATES = [0.1] * KEPT_STEPS
BEFORE = [[1.0, 1.0]] * 4


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([*BEFORE, [1.0, 3.0], [1.0, 3.0]], Rise(1, 32, 3.0)),
        ([*BEFORE, [1.0, 2.5], [3.0, 5.0], [1.0, 6.0]], Rise(1, 32, 6.0)),
        ([*BEFORE, [1.0, 2.5], [1.0, 1.0], [1.0, 6.0], [1.0, 7.0]], Rise(1, 48, 7.0)),
        ([*BEFORE, [1.0, 2.0], [1.0, 1.0], [1.0, 2.5], [1.0, 2.5]], None),  # it was so before
        ([*BEFORE, [1.0, 1.0], [1.0, 3.0]], None),  # one look may be so by chance
        ([*BEFORE, [1.0, 6.0], [1.0, 1.0]], None),  # over
        ([*BEFORE, [1.0, 1.9], [1.0, 1.9]], None),
        ([*BEFORE, [NAN, np.inf], [NAN, np.inf]], None),  # for other rules
        ([[NAN, np.inf], [-np.inf, 1e308], *BEFORE, [1e308, 3.0], [1e308, 3.0]], None),
        ([[0.0, 1.0]] * 4 + [[5.0, 1.0]] * 2, None),  # there was no usual one
        ([*BEFORE[1:], [1.0, 3.0], [1.0, 3.0]], None),  # too few
    ],
)
def test_the_largest_rise_that_lasts_is_found(
    updates: list[list[float]], expected: Rise | None
) -> None:
    found = history_of(*updates, lr=RATES)

    assert found.large_before(1_000) == expected
    assert found.large_before(0) is None


def test_a_step_itself_does_not_count() -> None:
    found = history_of(*BEFORE, [1.0, 3.0], [1.0, 3.0], [1.0, 5.0], lr=RATES)

    assert found.large_before(48) == Rise(1, 32, 3.0)
    assert found.large_before(40) is None


@pytest.mark.parametrize("rates", [None, [0.1] * 4 + [0.2] * 2])
def test_a_rate_that_rose_or_is_not_known_explains_it(rates: list[float] | None) -> None:
    assert history_of(*BEFORE, *[[1.0, 3.0]] * 2, lr=rates).large_before(1_000) is None


def test_steps_that_went_back_begin_anew() -> None:
    found = history_of(*BEFORE, *[[1.0, 3.0]] * 2, lr=RATES)
    found.add(frame_of(part_of([1.0, 1.0]), step=8))

    assert found.large_before(1_000) is None


def test_clipping_is_an_update_that_is_small_for_its_gradient_and_rate() -> None:
    halved = [[0.4, 0.4]] * 4
    free = history_of(*BEFORE, *halved, lr=[0.1] * 4 + [0.04] * 4)  # the rate explains it

    found = history_of(*BEFORE, *halved, lr=RATES).clipped_before(1_000)
    assert found is not None
    assert found == pytest.approx((32, 0.4))
    assert history_of(*BEFORE, *halved, lr=RATES).clipped_before(56) is None
    assert free.clipped_before(1_000) is None
    for rates in ([0.0] * 8, [0.0] * 4 + [0.1] * 4, [0.1] * 4 + [0.0] * 4):
        assert history_of(*BEFORE, *halved, lr=rates).clipped_before(1_000) is None
    assert history_of(*[[NAN, np.inf]] * 8, lr=RATES).clipped_before(1_000) is None
