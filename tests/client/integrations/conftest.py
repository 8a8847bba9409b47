"""What the tests of all frameworks share: comparing records with what a framework says itself."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState, GradientState, PartialState

import gradwatch_wire as wire
from tests.support.recording import Sink
from tests.support.waiting import wait_until

Said = Mapping[str, float]
"""What a framework logged of one step: `step`, `norm`, `loss`, `lr`, or some of them."""


@pytest.fixture(autouse=True)
def _no_accelerate_state() -> Iterator[None]:
    """Accelerate keeps what it knows in singletons, and the Trainer uses them."""
    yield
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()


@pytest.fixture
def check(aggregator: Sink) -> Callable[[Sequence[Said]], list[wire.Stats]]:
    """`check(said)`: there is one record for each step, and it says the same; return them."""

    def check_all(said: Sequence[Said]) -> list[wire.Stats]:
        sent: list[wire.Stats] = aggregator.stats(len(said))
        for stats, own in zip(sent, said, strict=True):
            shown = f"step {stats.step}: {dict(stats.scalars)}, {stats.labels} but {own}"
            assert stats.step == own["step"], shown
            assert stats.labels["point"] == "backward"
            squares = [norm**2 for norm in aggregator.layers(stats).values()]
            norm = math.sqrt(sum(squares))  # `hypot` of an Inf and a NaN is Inf
            assert norm == pytest.approx(own["norm"], rel=1e-4, nan_ok=True), shown
            for name in own.keys() - {"step", "norm"}:
                expected = pytest.approx(own[name], rel=1e-6, nan_ok=True)
                assert stats.scalars[name] == expected, shown
        return sent

    return check_all


@pytest.fixture
def farewell(aggregator: Sink) -> Callable[[], str]:
    """`farewell()` returns the reason in the last record of the watch."""

    def reason() -> str:
        wait_until(lambda: aggregator.of(wire.Bye), "BYE")
        found: str = aggregator.of(wire.Bye)[-1].reason
        return found

    return reason


@pytest.fixture
def run_name(aggregator: Sink) -> Callable[[], str]:
    """`run_name()` returns what the last client called its run."""

    def name() -> str:
        wait_until(lambda: aggregator.hellos, "HELLO")
        found: str = list(aggregator.hellos.values())[-1].run
        return found

    return name


@pytest.fixture
def torchrun(aggregator: Sink, tmp_path: Path) -> Callable[..., None]:
    """`torchrun(2, source, *arguments)` runs Python source in so many processes."""

    def run(processes: int, source: str, *arguments: str) -> None:
        script = tmp_path / "ranks.py"
        script.write_text(source, encoding="utf-8")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*launcher, f"--nproc-per-node={processes}", script, *arguments],
            env=os.environ | {"GRADWATCH_ENDPOINT": aggregator.endpoint, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        assert done.returncode == 0, done.stderr

    return run
