"""Fixtures of the client's tests: a small aggregator on a real socket, and scripts."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.forking import TRAINING, run_forked
from tests.support.recording import NewAggregator, Sink

# Without a GPU, kernels run in Triton's interpreter. It looks here when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

LAUNCHER_VARIABLES = (
    *("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"),
    *("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"),
    *("GRADWATCH_RUN", "GRADWATCH_ENDPOINT", "GRADWATCH_DISABLED", "GRADWATCH_SPILL"),
)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Small tensors gain nothing from several threads, and timings suffer from them."""
    torch.set_num_threads(1)


@pytest.fixture
def new_aggregator() -> Iterator[NewAggregator]:
    """Start a small aggregator, on an endpoint if one is given."""
    made: list[Sink] = []

    def start(*endpoint: str) -> Sink:
        made.append(Sink(*endpoint))
        made[-1].start()
        return made[-1]

    yield start
    for aggregator in made:
        aggregator.stop()


@pytest.fixture
def aggregator(new_aggregator: NewAggregator) -> Sink:
    """A small aggregator that runs."""
    return new_aggregator()


@pytest.fixture
def rank_0_of_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of a launcher that started two ranks."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """`torch.distributed` with this process alone in it."""
    dist.init_process_group("gloo", f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    gc.collect()  # DDP's reducers let go of the group
    dist.destroy_process_group()


Script = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_script(aggregator: Sink, tmp_path: Path) -> Script:
    """Run Python source as a program of its own, attached to the small aggregator by default."""

    def run(source: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(source, encoding="utf-8")
        settings = {"GRADWATCH_ENDPOINT": aggregator.endpoint, "OMP_NUM_THREADS": "1"}
        return run_forked(
            [path, *arguments], TRAINING, timeout_s=90, environ=os.environ | settings | environ
        )

    return run
