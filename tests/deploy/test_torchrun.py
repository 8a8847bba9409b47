"""docs/torchrun.md: the command that starts a node, run as two nodes on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwatch_server.keys import make_keys, read_keys
from tests.support.aggregator import Aggregator
from tests.support.machine import REPOSITORY
from tests.support.ports import ReservedPort
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

PAGE = (REPOSITORY / "docs" / "torchrun.md").read_text("utf-8")
TRAINING = REPOSITORY / "client" / "gradwatch" / "demo.py"


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[Aggregator]:
    keys = tmp_path / "keys"
    make_keys(keys)
    made = Aggregator(tmp_path / "data", "--keys-dir", str(keys))
    made.headers["Authorization"] = f"Bearer {read_keys(keys).tokens.read}"
    made.start()
    yield made
    made.close()


@pytest.fixture
def meeting() -> str:
    port = ReservedPort()
    number = port.number
    port.close()  # torchrun binds it without asking for its reuse
    return f"localhost:{number}"


@pytest.mark.exhaustive
def test_two_nodes_train_one_run(aggregator: Aggregator, meeting: str, tmp_path: Path) -> None:
    """Its ranks are of one attempt; `gradwatch health` finds nothing to complain of."""
    (command,) = re.findall(r"```bash\n(export .*?)```", PAGE, re.DOTALL)
    for shown, here in {
        "tcp://node-1:5555": aggregator.ingest,
        "~/client.key": str(tmp_path / "keys" / "client.key"),
        "--nproc-per-node gpu": "--nproc-per-node 1",
        "node-1:29500": meeting,
        "train.py --lr 3e-4": f"{TRAINING} --steps 4",
    }.items():
        assert shown in command
        command = command.replace(shown, here)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    nodes = [
        subprocess.Popen(
            ["bash", "-euc", command],
            env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
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
    report = aggregator.health_of_ended("gpt2-small")
    assert (report["world"], report["attempt"], report["step"]) == (2, 1, 3)
    assert [rank["state"] for rank in report["ranks"]] == ["ended", "ended"]
