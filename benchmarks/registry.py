"""All commands `scripts/bench NAME`: figures that they print, and pages that state them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

Value: TypeAlias = bool | int | float | str | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One command.

    Args:
        module: Module of this package that has `run(**options)`. It is loaded only when it runs:
            some need torch, some must not have it.
        figures: Figures that it prints and that a page states.
        pages: Pages that state them: README.md, or one of docs/.
        options: Defaults of its options, by name. A flag is False.
    """

    module: str
    figures: str
    pages: tuple[str, ...]
    options: Mapping[str, Value] = field(default_factory=dict)


OPTIONS: Final[Mapping[str, str]] = {
    "quick": "a smoke test of seconds; its numbers mean nothing",
    "write": "put the tables into docs/",
    "only": "parts whose name contains this",
    "rounds": "times that each variant is measured",
    "records": "records in one pass",
    "steps": "steps of one block",
    "sessions": "sessions, each with a connection of its own",
    "seconds": "seconds that are measured",
    "runs": "runs, each with a full window",
    "alerts": "alerts to wait for",
    "rate": "records per second",
    "calls": "count calls and files in place of time",
    "directory": "where the recorded runs are, or will be",
    "judge_only": "make no runs: judge those that are there",
}

BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "step": Benchmark(
        module="step",
        figures="share of a step with the aggregator alive, dead, killed, stopped; memory",
        pages=("README.md", "costs.md", "reliability.md"),
        options={"quick": False, "steps": 60, "rounds": 6},
    ),
    "client": Benchmark(
        module="client",
        figures="statistics beside one read of the gradients and what people use; DDP; weights",
        pages=("README.md", "costs.md"),
        options={"quick": False, "rounds": 11},
    ),
    "overhead": Benchmark(
        module="overhead",
        figures="CPU time that a watch adds to steps of small models, also with a budget",
        pages=("costs.md",),
        options={"quick": False, "rounds": 15},
    ),
    "activations": Benchmark(
        module="activations",
        figures="share of a step that attach(activations=...) adds",
        pages=("costs.md",),
        options={"quick": False, "rounds": 300},
    ),
    "footprint": Benchmark(
        module="footprint",
        figures="seconds and memory of `import gradwatch` on top of `import torch`",
        pages=("README.md", "costs.md"),
        options={"quick": False, "rounds": 9},
    ),
    "latency": Benchmark(
        module="latency",
        figures="milliseconds from collect() to the alert stream",
        pages=("README.md", "costs.md"),
        options={"quick": False, "alerts": 400, "rate": 200.0},
    ),
    "ingest": Benchmark(
        module="ingest",
        figures="records per second, beside a loop that only receives and unpacks",
        pages=("costs.md",),
        options={"quick": False, "records": 24_000, "rounds": 5},
    ),
    "idle": Benchmark(
        module="idle",
        figures="CPU time and memory of sessions that only say that they live",
        pages=("costs.md",),
        options={"quick": False, "sessions": 4_000, "seconds": 20.0},
    ),
    "fold": Benchmark(
        module="fold",
        figures="CPU of one record in the core along ranks, layers and runs; its calls",
        pages=("costs.md",),
        options={"quick": False, "records": 4_000, "calls": False},
    ),
    "recovery": Benchmark(
        module="recovery",
        figures="seconds until a killed aggregator is ready, beside an empty one",
        pages=("reliability.md",),
        options={"quick": False, "rounds": 5, "runs": 100},
    ),
    "reliability": Benchmark(
        module="reliability",
        figures="records stored, lost and doubled in each fault; memory of the aggregator",
        pages=("reliability.md",),
        options={"quick": False, "records": 1_000_000},
    ),
    "nodes": Benchmark(
        module="nodes",
        figures="records lost and doubled when a node over PostgreSQL fails; time until it goes on",
        pages=("cluster.md",),
        options={"quick": False, "rounds": 20},
    ),
    "fairness": Benchmark(
        module="fairness",
        figures="acknowledgements and answers of an honest peer beside each attack",
        pages=("reliability.md",),
        options={"quick": False, "only": "", "write": False},
    ),
    "alerts": Benchmark(
        module="alerts.evaluate",
        figures="faults found and false alarms on recorded trainings, beside rules used elsewhere",
        pages=("README.md", "alerts-measured.md"),
        options={
            "directory": Path(".venv/alerts"),
            "only": "",
            "quick": False,
            "judge_only": False,
            "write": False,
        },
    ),
    "loops": Benchmark(
        module="loops.table",
        figures="what is said of each training loop, beside what is true",
        pages=("training-loops.md",),
        options={"only": "", "write": False},
    ),
    "gpu": Benchmark(
        module="gpu_session",
        figures="all that only a GPU can show; `scripts/bench gpu --help`",
        pages=("gpu.md",),
    ),
}
