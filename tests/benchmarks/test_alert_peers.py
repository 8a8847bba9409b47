"""The rules of others: tiny series whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.alerts.peers import PEERS, olmo, zclip
from benchmarks.alerts.peers.megatron import large
from benchmarks.alerts.peers.series import Series
from benchmarks.alerts.recorded import Recorded
from benchmarks.alerts.store import Collection

STEPS = 300
LAYERS = ("first.weight", "second.weight")


def series(**changes: Any) -> Series:
    """Return a quiet run of two ranks, with some of its numbers changed."""
    norm = 1.0 + 0.1 * (np.arange(STEPS) % 2)
    quiet: dict[str, Any] = {
        "layers": LAYERS,
        "mean_abs": np.full((STEPS, 2), 1e-3),
        "nonfinite": np.zeros((STEPS, 2), dtype=np.bool_),
        "norm": norm,
        "local_norm": np.column_stack([norm, norm]),
        "loss": np.column_stack([norm, norm]),
        "has_scaler": False,
        "attempt": np.zeros(STEPS, dtype=np.int64),
    }
    return Series(**quiet | changes)


def changed(values: Any, at: Any, value: float) -> Any:
    """Return a copy of an array that has another value somewhere."""
    copied = values.copy()
    copied[at] = value
    return copied


def said(peer: str, given: Series) -> list[tuple[int, str]]:
    return [(each.step, each.rule) for each in PEERS[peer].findings(given)]


@pytest.mark.parametrize("peer", PEERS)
def test_a_quiet_run_is_quiet(peer: str) -> None:
    assert said(peer, series()) == []


def test_sagemaker_looks_at_each_tensor_and_ends() -> None:
    """A mean of the magnitudes below 1e-7 is told once; absent layers are no matter."""
    quiet = series()
    small = changed(quiet.mean_abs, (slice(100, 120), 1), 0.99e-7)
    (found,) = PEERS["SageMaker"].findings(series(mean_abs=small))
    assert (found.step, found.rule, found.layer) == (100, "vanishing", "second.weight")
    assert said("SageMaker", series(mean_abs=changed(quiet.mean_abs, (100, 1), 1e-7))) == []
    assert said("SageMaker", series(mean_abs=changed(quiet.mean_abs, (100, 1), np.nan))) == []


def test_sagemaker_tells_non_finite_tensors() -> None:
    bad = changed(series().nonfinite, ([50, 51, 200], 0), True)
    assert said("SageMaker", series(nonfinite=bad)) == [(50, "nonfinite"), (200, "nonfinite")]


def test_olmo_core_needs_six_deviations_of_a_full_window() -> None:
    norm = series().norm
    assert said("OLMo-core", series(norm=changed(norm, 128, 1.36))) == [(128, "exploding")]
    assert said("OLMo-core", series(norm=changed(norm, 128, 1.34))) == []
    assert said("OLMo-core", series(norm=changed(norm, 127, 1.36))) == []
    loss = changed(series().loss, 200, 2.0)
    assert said("OLMo-core", series(loss=loss)) == [(200, "loss")]


def test_olmo_core_is_silent_while_nan_is_in_its_window() -> None:
    """128 steps; a series without any spread is not judged either."""
    norm = changed(changed(series().norm, 130, np.nan), [200, 259], 9.0)
    assert olmo.spikes(norm).tolist() == [259]
    assert len(olmo.spikes(changed(np.ones(STEPS), 200, 9.0))) == 0


def test_zclip_compares_with_its_moving_average() -> None:
    norm = series().norm
    assert said("ZClip", series(norm=changed(norm, 24, 9.0))) == []
    assert said("ZClip", series(norm=changed(norm, 100, 1.2))) == [(100, "exploding")]
    assert said("ZClip", series(norm=changed(norm, 100, 1.15))) == []
    mean, std = 1.0, 0.5
    first = [mean - std, mean + std] * 12 + [mean]
    variance = std**2 * 24 / 25
    z = (9.0 - mean) / (variance**0.5 + zclip.EPS)
    clipped = mean + 2.5 * variance**0.5 / (z / 2.5)
    after = 0.97 * mean + 0.03 * clipped
    spread = (0.97 * variance + 0.03 * (clipped - after) ** 2) ** 0.5
    limit = after + 2.5 * (spread + zclip.EPS)
    assert list(zclip.spikes([*first, 9.0, limit * 1.0001])) == [25, 26]
    assert list(zclip.spikes([*first, 9.0, limit * 0.9999])) == [25]


def test_zclip_warms_up_anew_in_each_attempt() -> None:
    norm = changed(series().norm, [110, 160], 9.0)
    attempt = (np.arange(STEPS) >= 100).astype(np.int64)
    assert said("ZClip", series(norm=norm, attempt=attempt)) == [(160, "exploding")]


def test_megatron_compares_with_the_first_hundred() -> None:
    """Ten times their largest, on each rank by itself, before the reduction."""
    local = series().local_norm
    (found,) = PEERS["Megatron"].findings(series(local_norm=changed(local, (100, 1), 11.0)))
    assert (found.step, found.rule, found.rank) == (100, "exploding", 1)
    assert said("Megatron", series(local_norm=changed(local, (99, 1), 11.0))) == []
    assert said("Megatron", series(local_norm=changed(local, (100, 1), 10.9))) == []
    assert not large(changed(local, (slice(0, 100), 0), np.nan))[:100].any()


def test_megatron_does_not_check_gradients_with_a_dynamic_scale() -> None:
    local = changed(series().local_norm, (150, 0), np.nan)
    assert said("Megatron", series(local_norm=local)) == [(150, "nonfinite")]
    assert said("Megatron", series(local_norm=local, has_scaler=True)) == []
    loss = changed(series().loss, (150, 0), np.inf)
    given = series(loss=loss, has_scaler=True)
    assert said("Megatron", given) == [(150, "nonfinite")]


def test_lightning_looks_at_the_loss_alone() -> None:
    loss = changed(series().loss, (150, 1), np.nan)
    (found,) = PEERS["Lightning"].findings(series(loss=loss))
    assert (found.step, found.rule, found.rank) == (150, "nonfinite", 1)
    bad = changed(series().nonfinite, (100, 0), True)
    assert said("Lightning", series(nonfinite=bad)) == []


def _total(recorded: Recorded) -> Any:
    return np.sqrt(np.nansum(recorded.rows.column("l2") ** 2, axis=1))


def test_a_series_has_the_numbers_of_the_loop(runs: Collection) -> None:
    """Norm of all layers; local norms of each rank; what is not finite shows."""
    healthy = runs.read("regression-1")
    given = Series.of(healthy)
    np.testing.assert_allclose(given.norm, _total(healthy))
    local = np.sqrt((healthy.rows.local_l2**2).sum(2))
    np.testing.assert_allclose(given.local_norm, local)
    mean_abs = healthy.rows.column("l1") / np.array(healthy.numel)
    np.testing.assert_array_equal(given.mean_abs, mean_abs)
    assert not given.nonfinite.any()
    bad = runs.read("regression-0+nan_gradient")
    assert bad.fault is not None
    nan = Series.of(bad)
    assert np.isnan(nan.norm[bad.fault.first_step])
    places = np.flatnonzero(nan.nonfinite[bad.fault.first_step])
    assert [nan.layers[place] for place in places] == list(bad.fault.layers)


def test_a_detached_layer_is_absent_and_not_zero(runs: Collection) -> None:
    fork = runs.read("regression-0+detached")
    given = Series.of(fork)
    absent = [fork.layers.index(name) for name in fork.fault.layers] if fork.fault else []
    assert np.isnan(given.mean_abs[-1, absent]).all()
    assert np.isfinite(given.norm).all()
    assert said("SageMaker", given) == []
