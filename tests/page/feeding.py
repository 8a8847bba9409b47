"""Runs that the tests of the page feed to an aggregator: rows of statistics, right or wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from gradwatch_wire import Column, Stats
from tests.support.aggregator import Aggregator
from tests.support.peer import Peer

LAYERS: Final = (
    "transformer.wte.weight",
    *(f"transformer.h.{block}.{part}" for block in range(4) for part in ("attn.w", "mlp.w")),
    "lm_head.weight",
)
POISONED: Final = "transformer.h.2.attn.w"
POISON_STEP: Final = 37
STEPS: Final = 60
NAN: Final = math.nan


def norm_of(layer: int, step: int) -> float:
    """Return a calm L2 norm."""
    return 0.1 * (layer + 1) * (1 + 0.1 * math.sin(step))


def stats(step: int, names: Sequence[str] = LAYERS, poisoned: str | None = None) -> Stats:
    """Return statistics of a step, one layer of it NaN if it is named."""
    norms = [NAN if name == poisoned else norm_of(at, step) for at, name in enumerate(names)]
    nans = [3 if name == poisoned else 0 for name in names]
    return Stats(
        manifest_id=1,
        step=step,
        scalars={"loss": 2.0 + 1 / (step + 1), "lr": 1e-3, "step_time_s": 0.2},
        columns={
            "l2": Column.pack("<f8", norms),
            "linf": Column.pack("<f8", [norm / 2 for norm in norms]),
            "nans": Column.pack("<u8", nans),
            "infs": Column.pack("<u8", [0] * len(names)),
            "zeros": Column.pack("<u8", [0] * len(names)),
        },
    )


def feed(
    aggregator: Aggregator,
    run: str = "gpt",
    steps: range = range(STEPS),
    poison_step: int | None = POISON_STEP,
    names: Sequence[str] = LAYERS,
    **declared: Any,
) -> Peer:
    """Send a run of one rank, with one poisoned layer at a step; it stays attached."""
    peer = aggregator.peer(run=run).attach(names, **declared)
    more(peer, steps, poison_step, names)
    aggregator.shows(peer)
    return peer


def more(
    peer: Peer, steps: range, poison_step: int | None = None, names: Sequence[str] = LAYERS
) -> None:
    """Send further steps of a run."""
    for step in steps:
        peer.send(stats(step, names, POISONED if step == poison_step else None))
    peer.acked()
