"""A column is defined once, on the wire: frames and checkpoints follow from that."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradwatch_wire.columns import STATISTIC_COLUMNS, Combine

NAN = math.nan

# Defines columns that gradwatch does not have before anything looks at the table, and lets four
# ranks send them. Memory that nobody wrote holds a number that nobody sent.
JOB = """
import json

import numpy as np

from gradwatch_wire import columns
from gradwatch_wire.columns import Combine, StatisticColumn

new = {
    "cubes": StatisticColumn("cubes", Combine.SUM),
    "peak": StatisticColumn("peak", Combine.MAX),
    "norm": StatisticColumn("norm", Combine.ROOT_SUM_SQUARES, nan_is_value=True),
    "odd": StatisticColumn("odd", Combine.SUM, is_count=True, counts_nonfinite=True),
}
columns.STATISTIC_COLUMNS += tuple(new.values())
columns.MEASURED_COLUMNS += tuple(new)

unwritten = np.empty


def written_over(*args, **kwargs):
    made = unwritten(*args, **kwargs)
    made.fill(777)
    return made


np.empty = written_over

from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.state_codec import decode, encode
from tests.support.core import Cluster

job = Cluster(world=4, names=("whole", "sharded"))
for rank in range(4):
    job.open(rank)
    job.declare(rank, shards=("", f"Shard(0) {rank // 2}/2"))


def send(ranks, step):
    for rank in ranks:
        job.stats(rank, step, **{name: [1.0 + rank, 1.0 + rank] for name in new})


send(range(4), 0)
complete = job.frame
send(range(2), 1)
job.wait(9)
partial = job.frame

restored = decode(encode(job.attempt), Attempt)


def columns(frame):
    return {name: frame.column(name).tolist() for name in new}


print(json.dumps({
    "complete": columns(complete),
    "partial": columns(partial),
    "restored": columns(restored.last_frame),
    "unwritten": bool((complete.columns == 777).any() or (partial.columns == 777).any()),
}))
"""


@pytest.fixture(scope="module")
def told() -> Any:
    done = subprocess.run(
        [sys.executable, "-c", JOB],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_column_that_is_only_defined_is_merged(told: Any) -> None:
    assert told["complete"] == {
        "cubes": [4.0, 2.0 + 4.0],
        "peak": [4.0, 4.0],
        "norm": [4.0, pytest.approx(math.hypot(2.0, 4.0))],
        "odd": [4.0, 2.0 + 4.0],
    }


def test_of_a_layer_that_lacks_a_shard_only_what_is_known_is_kept(told: Any) -> None:
    """How many NaN or Inf were counted; nothing holds what was in memory before."""
    assert str(told["partial"]) == str(
        {"cubes": [2.0, NAN], "peak": [2.0, NAN], "norm": [2.0, NAN], "odd": [2.0, 2.0]}
    )
    assert not told["unwritten"]


def test_it_is_in_checkpoints(told: Any) -> None:
    assert str(told["restored"]) == str(told["partial"])


@pytest.mark.parametrize("column", STATISTIC_COLUMNS, ids=lambda column: column.name)
def test_a_count_of_a_layer_is_the_sum_over_its_shards(column: Any) -> None:
    assert not column.is_count or column.combine is Combine.SUM
    assert not column.counts_nonfinite or column.is_count
