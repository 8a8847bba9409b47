"""Training of several stages: a small model, an aggregator in this process, its log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

import gradwatch
import gradwatch_wire as wire
from tests.support.recording import Sink

WIDTH: Final = 64
RUN: Final = "gpu-session"


def small_model(device: str) -> nn.Sequential:
    """Return two layers with a bias each."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).to(device)


class Received:
    """Records that a watch has sent.

    Args:
        aggregator: Took it.
        watch: Sent it; closed by whoever made this.
    """

    def __init__(self, aggregator: Sink, watch: gradwatch.Watch) -> None:
        self._aggregator = aggregator
        self.watch = watch

    def stats(self) -> list[wire.Stats]:
        """Close the watch, and return its STATS in the order in which they were made."""
        self.watch.close()
        return self._aggregator.of(wire.Stats)

    def layers(self, stats: wire.Stats, column: str = "l2") -> dict[str, float]:
        return self._aggregator.layers(stats, column)


@contextlib.contextmanager
def watching(model: Any, *arguments: Any, **settings: Any) -> Iterator[Received]:
    """Attach to a model, with an aggregator that keeps what is sent."""
    aggregator = Sink()
    aggregator.start()
    try:
        watch = gradwatch.attach(
            model, *arguments, run=RUN, endpoint=aggregator.endpoint, **({"every": 1} | settings)
        )
        assert isinstance(watch, gradwatch.Watch), "GRADWATCH_DISABLED is set"
        with watch:
            yield Received(aggregator, watch)
    finally:
        aggregator.stop()


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what gradwatch logs in the block."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep()
    logger = logging.getLogger("gradwatch")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(batch).square().mean()
    return loss
