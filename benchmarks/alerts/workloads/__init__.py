"""The workloads: one file each, and a line here."""

from __future__ import annotations

from typing import Final

from benchmarks.alerts.training import Training
from benchmarks.alerts.workloads.cnn import Cnn
from benchmarks.alerts.workloads.mlp import Mlp
from benchmarks.alerts.workloads.transformer import Gpt

_ALL: Final[tuple[type[Training], ...]] = (
    Mlp,
    Cnn,
    Gpt,
)

WORKLOADS: Final[dict[str, type[Training]]] = {each.name: each for each in _ALL}
"""Name to workload."""
