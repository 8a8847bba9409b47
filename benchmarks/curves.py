"""What curves of a long run cost: room on the disk, time to make buckets, time to read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.harness import aggregator
from benchmarks.long_run import RUN, Made, ask, make
from benchmarks.report import quantile, show
from gradwatch_wire.columns import MEASURED_COLUMNS

REQUESTS: Final = 200


def run(*, quick: bool = False, steps: int = 1_000_000, layers: int = 10) -> None:
    """Measure and print."""
    requests = REQUESTS
    if quick:
        steps, requests = 20_000, 5
    with aggregator() as service:
        made = make(service, steps, layers)
        asked = {what: ask(service, path, requests) for what, path in _questions(made)}
    show(
        "curves on disk",
        ("", "bytes per layer and step", "MB"),
        [
            [what, f"{size / (made.steps * layers):.2f}", f"{size / 1e6:,.0f}"]
            for what, size in _sizes(made)
        ],
        f"{made.steps:,} steps x {layers} layers x {len(MEASURED_COLUMNS)} columns, and "
        "the run's own numbers beside them.",
        f"Making the buckets took {sum(made.slices_s):.1f} s, in slices of "
        f"{quantile(made.slices_s, 0.5) * 1e3:.1f} ms (p99 "
        f"{quantile(made.slices_s, 0.99) * 1e3:.1f}); the engine gives it a tenth of its time.",
    )
    show(
        "curves over HTTP",
        ("question", "p50 ms", "p99 ms", "kB"),
        [
            [
                what,
                f"{quantile(times, 0.5) * 1e3:.1f}",
                f"{quantile(times, 0.99) * 1e3:.1f}",
                f"{size / 1e3:.0f}",
            ]
            for what, (times, size) in asked.items()
        ],
        f"{requests} requests one after the other, safetensors, one connection.",
    )


def _sizes(made: Made) -> Iterator[tuple[str, int]]:
    yield "every step", made.every_step_bytes
    yield "with all buckets", made.with_buckets_bytes
    yield "the file, with all there is", made.file_bytes


def _questions(made: Made) -> Iterator[tuple[str, str]]:
    """Yield what is asked for, and the path."""
    first = made.steps // 3
    layer = all_steps_of_a_layer(made)
    yield "one layer, all steps", layer
    yield (
        "norm and loss, all steps",
        f"/runs/{RUN}/series?format=safetensors&column=norm&column=loss",
    )
    yield "one layer, 60,000 steps", f"{layer}&from={first}&to={first + 60_000}"
    yield "one layer, 1,000 steps", f"{layer}&from={first}&to={first + 999}"
    yield "picture of the last 512", f"/runs/{RUN}/heatmap?format=safetensors"


def all_steps_of_a_layer(made: Made) -> str:
    """Return the path of one layer's curve over the whole run."""
    return f"/runs/{RUN}/series?format=safetensors&layer={made.names[len(made.names) // 2]}"
