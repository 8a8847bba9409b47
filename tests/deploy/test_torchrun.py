"""deploy/torchrun/train.sh: two nodes on this machine, each started by its own call of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.aggregator import Aggregator
from tests.support.machine import REPOSITORY
from tests.support.ports import ReservedPort
from tests.support.waiting import PATIENCE_S

SCRIPT = REPOSITORY / "deploy" / "torchrun" / "train.sh"
EXAMPLE = REPOSITORY / "docs" / "examples" / "train_ddp.py"


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[Aggregator]:
    """It stands by itself, as on a machine of its own."""
    made = Aggregator(tmp_path / "data")
    made.start()
    yield made
    made.close()


@pytest.fixture
def meeting() -> str:
    """Where the ranks meet."""
    port = ReservedPort()
    number = port.number
    port.close()  # torchrun binds it without asking for its reuse
    return f"localhost:{number}"


@pytest.mark.slow
def test_two_nodes_train_one_run(aggregator: Aggregator, meeting: str) -> None:
    """Its ranks are of one attempt; `gradwatch health` finds nothing to complain of."""
    environ = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GRADWATCH_ENDPOINT": aggregator.ingest,
        "GRADWATCH_RUN": "two-nodes",
        "NPROC": "1",
        "OMP_NUM_THREADS": "1",
    }
    nodes = [
        subprocess.Popen(
            [SCRIPT, "2", meeting, EXAMPLE, "--steps", "4"],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        printed = [node.communicate(timeout=4 * PATIENCE_S)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()

    assert [node.returncode for node in nodes] == [0, 0], printed
    assert sum("step    3  loss " in text for text in printed) == 1  # rank 0 prints
    report = aggregator.health_of_ended("two-nodes")
    assert (report["world"], report["attempt"], report["step"]) == (2, 1, 3)
    assert [rank["state"] for rank in report["ranks"]] == ["ended", "ended"]


def test_what_is_missing_is_named() -> None:
    """One line, and exit code 2 for the arguments."""
    environ = {"PATH": os.environ["PATH"]}
    short = subprocess.run([SCRIPT, "2"], env=environ, capture_output=True, text=True, check=False)
    unnamed = subprocess.run(
        [SCRIPT, "2", "node", "x.py"], env=environ, capture_output=True, text=True, check=False
    )

    assert (short.returncode, short.stdout) == (2, "")
    assert "usage: " in short.stderr
    assert unnamed.returncode == 1
    assert "GRADWATCH_RUN: is the name of the run, the same on all nodes" in unnamed.stderr
