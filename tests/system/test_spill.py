"""Spill files: a killed worker, and an outage longer than the memory, lose nothing."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.aggregator import GRADWATCH, Aggregator
from tests.support.job import Train
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

STEPS = 1_500


def killed_worker(train: Train, directory: Path, steps: int = STEPS) -> None:
    """Run one until it has made its steps, and SIGKILL it."""
    job = train(
        1,
        *("--run", "gpt", "--spill", str(directory), "--steps", str(steps), "--stay"),
        worker="spill_worker.py",
    )
    job.wait_for_training()
    line = job.line()
    assert line.split()[::2] == [str(steps + 1), "0"], line
    assert int(line.split()[1]) > 0, "the send buffer held everything"
    job.ranks[0].send_signal(signal.SIGKILL)
    job.ranks[0].wait()


def replay(aggregator: Aggregator, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [GRADWATCH, "replay", *arguments, "--endpoint", aggregator.ingest],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def ranks(aggregator: Aggregator) -> dict[str, Any]:
    report: dict[str, Any] = aggregator.json("/runs/gpt/ranks")
    return report


def test_what_a_worker_killed_in_an_outage_produced_is_replayed_once(
    aggregator: Aggregator, train: Train, tmp_path: Path
) -> None:
    """The aggregator never saw it. Replayed twice, nothing is stored twice."""
    spill = tmp_path / "spill"
    killed_worker(train, spill)
    aggregator.start()
    first = replay(aggregator, str(spill))
    wait_until(lambda: ranks(aggregator)["records"]["stored"] > STEPS, "all shown")
    after_first = ranks(aggregator)
    second = replay(aggregator, str(spill), "--remove")

    assert first.stdout == f"gpt rank 0: {STEPS + 1} records sent, all stored\n", first.stderr
    assert second.stdout == "gpt rank 0: 0 records sent, all stored\n", second.stderr
    assert after_first["records"] == {"stored": STEPS + 1, "lost": 0, "late": 0, "unresolved": 0}
    assert ranks(aggregator)["records"] == after_first["records"]
    assert after_first["ranks"][0]["last_step"] == STEPS - 1
    assert list(spill.iterdir()) == []


def test_the_next_process_sends_what_a_killed_one_left(
    aggregator: Aggregator, train: Train, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    killed_worker(train, spill)
    aggregator.start()
    job = train(1, "--run", "gpt", "--spill", str(spill), "--steps", "20", worker="spill_worker.py")
    (output,) = job.wait()
    report = aggregator.health_of_ended("gpt")
    if list(spill.iterdir()):  # it did not live long enough to send all
        assert replay(aggregator, str(spill), "--remove").returncode == 0
    stored = STEPS + 1 + 20 + 2
    wait_until(lambda: aggregator.health("gpt")["records"]["stored"] >= stored, "all shown")
    records = aggregator.health("gpt")["records"]

    assert output.splitlines()[0] == "training"
    assert report["step"] == 19
    assert (records["stored"], records["lost"]) == (stored, 0)


def test_an_outage_longer_than_the_memory_loses_nothing(
    aggregator: Aggregator, train: Train, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    job = train(
        1, "--run", "gpt", "--spill", str(spill), "--steps", str(STEPS), worker="spill_worker.py"
    )
    job.wait_for_training()
    spilled, evicted, dropped = map(int, job.line().split())
    aggregator.start()
    job.wait()
    wait_until(lambda: ranks(aggregator)["ranks"][0]["state"] == "ended", "its BYE")
    report = ranks(aggregator)

    assert (spilled, dropped) == (STEPS + 1, 0)
    assert evicted > STEPS // 2
    assert report["records"] == {"stored": STEPS + 2, "lost": 0, "late": 0, "unresolved": 0}
    assert list(spill.iterdir()) == []
