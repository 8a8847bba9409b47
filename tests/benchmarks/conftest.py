"""Recorded runs that several tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.alerts.families.perceptrons import Regression
from benchmarks.alerts.make import record
from benchmarks.alerts.recipe import Recipe
from benchmarks.alerts.store import Collection
from tests.support.recording import Sink


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Small tensors gain nothing from several threads."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    directory: Path = tmp_path_factory.mktemp("alerts")
    plain = Recipe(family="regression", steps=420, optimizer="momentum")
    some = {
        plain: ("nan_gradient", "module_scaled", "detached"),
        replace(plain, seed=1, world=4): ("replica_corrupted", "stall"),
        replace(plain, seed=2, precision="scaler"): ("scale_collapse",),
        replace(plain, seed=3, world=2, habit="resumed"): (),
    }
    for recipe, variants in some.items():
        made = record(Regression(recipe), directory, variants, first=0.2, size=30.0)
        assert made.refused == ()
        assert set(made.forks) == set(variants)
    return Collection(directory)


@pytest.fixture
def aggregator() -> Iterator[Sink]:
    """A small aggregator that runs."""
    made = Sink()
    made.start()
    yield made
    made.stop()
