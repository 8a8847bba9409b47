"""docs/examples/train_sky.yaml: its `run` on two nodes, with the variables that SkyPilot sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.aggregator import Aggregator
from tests.support.waiting import PATIENCE_S, wait_until
from tests.support.yaml_files import documents

ROOT: Final = Path(__file__).parents[2]

TRAIN: Final = """
import gradwatch, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
with gradwatch.attach(model, optimizer, every=1):
    for _ in range(5):
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_both_nodes_are_one_run(aggregator: Aggregator, tmp_path: Path) -> None:
    aggregator.start()
    (tmp_path / "train.py").write_text(TRAIN)
    (task,) = documents((ROOT / "docs" / "examples" / "train_sky.yaml").read_text("utf-8"))
    (key,) = task["file_mounts"]
    bin_directory = Path(sys.executable).parent
    environ = os.environ | {
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "GRADWATCH_ENDPOINT": aggregator.ingest,
        "SKYPILOT_TASK_ID": "sky-2026-11-30-17-00-00-000000_train_1",
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
    }
    # The aggregator of the test asks for no key.
    script = task["run"].replace(f"GRADWATCH_KEYS={key}", "")
    assert script != task["run"]

    nodes = [
        subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environ | {"SKYPILOT_NODE_RANK": str(rank)},
        )
        for rank in range(task["num_nodes"])
    ]

    assert [node.wait(3 * PATIENCE_S) for node in nodes] == [0, 0]
    run = environ["SKYPILOT_TASK_ID"]
    health = wait_until(lambda: aggregator.health(run), "the run")
    assert health["phase"] == "ended"
    assert [rank["rank"] for rank in health["ranks"]] == [0, 1]
    assert health["records"]["lost"] == 0
