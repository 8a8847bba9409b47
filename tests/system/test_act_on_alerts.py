"""The example that acts on alerts: two gloo processes, a real aggregator, real alerts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.aggregator import Aggregator

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "act_on_alerts.py"


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[Aggregator]:
    made = Aggregator(tmp_path / "data")
    made.start()
    yield made
    made.close()


def train(aggregator: Aggregator, folder: Path, *arguments: str) -> list[tuple[int, int, str, str]]:
    """Run it under torchrun; return rank, step, action and learning rate of each line."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, EXAMPLE, "--folder", folder, "--steps", "400", *arguments],
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "GRADWATCH_ENDPOINT": aggregator.ingest}
        | {"GRADWATCH_OVERHEAD": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # Two processes write to one pipe, each its line and then the end of the line.
    found = re.findall(r"rank (\d) step (\d+): (\w+), learning rate ([\d.e-]+)", done.stdout)
    return [(int(rank), int(step), action, rate) for rank, step, action, rate in found]


def test_all_ranks_save_slow_down_and_stop_at_the_same_step(
    aggregator: Aggregator, tmp_path: Path
) -> None:
    told = train(aggregator, tmp_path, "--explode-step", "30", "--poison-step", "150")
    own = [[line[1:] for line in told if line[0] == rank] for rank in (0, 1)]

    assert own[0] == own[1]
    assert [(action, rate) for _, action, rate in own[0]] == [
        ("lower_rate", "0.001"),
        ("save", "0.001"),
        ("stop", "0.001"),
    ]
    (_, _, _), (saved, _, _), (stopped, _, _) = own[0]
    assert 30 < saved < 150 < stopped < 399
    checkpoint = torch.load(tmp_path / f"checkpoint-{saved}.pt")
    assert checkpoint["step"] == saved
    health = aggregator.health_of_ended("acts-on-alerts")
    assert health["step"] == stopped
    alerts = aggregator.json("/alerts")
    assert {alert["rule"] for alert in alerts} >= {"exploding", "nonfinite"}


@pytest.mark.exhaustive
def test_a_healthy_training_is_left_alone(aggregator: Aggregator, tmp_path: Path) -> None:
    assert train(aggregator, tmp_path, "--pause-s", "0") == []
    assert [alert for alert in aggregator.json("/alerts") if alert["severity"] != "info"] == []
    assert aggregator.health_of_ended("acts-on-alerts")["status"] == "healthy"
