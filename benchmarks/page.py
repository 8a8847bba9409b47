"""What the page costs a browser: time to its first picture, and bytes.

A real `gradwatch serve`, and real Chromium in which nothing is cached. A run of 1,000 layers is
sent to the ingest port, and goes on while it is watched. One of a million steps is put into the
store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benchmarks import long_run
from benchmarks.documents import Section
from benchmarks.harness import Aggregator, aggregator
from benchmarks.page_tab import FirstPicture, measured_tab
from benchmarks.report import console, quantile, show, with_range
from gradwatch_wire import Column, Stats
from tests.support.chromium import chromium, missing
from tests.support.peer import Peer

RUN: Final = "wide"
BAD_LAYER: Final = 0.7
BAD_STEP: Final = 0.9
"""Which layer and which step of the wide run is NaN, as parts of all of them."""

RATES: Final = (1.0, 10.0)
"""Steps per second while it is watched; the page asks once a second at most."""

COLUMNS: Final = ("what", "measured", "aim")
SECTION: Final = Section.of("costs.md", "page")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    layers: int = 1_000
    steps: int = 512
    long_steps: int = 1_000_000
    long_layers: int = 10
    live_s: float = 30.0
    requests: int = 200


QUICK: Final = Size(40, 60, 20_000, 4, 2.0, 5)


def run(*, quick: bool = False, rounds: int = 9, write: bool = False) -> None:
    """Measure and print; without a browser say what is missing."""
    why = missing()
    if why is not None:
        console.print(f"page: nothing was measured, {why}", markup=False, highlight=False)
        return
    size, rounds = (QUICK, 1) if quick else (Size(), rounds)
    with chromium() as browser:
        rows = [*_wide(browser, size, rounds), *_long(browser, size, rounds)]
    show("page", COLUMNS, rows, *_notes(rounds), section=SECTION if write else None)


def _wide(browser: Any, size: Size, rounds: int) -> Iterator[list[str]]:
    """Measure the run of many layers."""
    what = f"{size.layers:,} layers x {size.steps:,} steps"
    with aggregator() as service:
        sender = _Sender(service, size)
        url = f"{service.url}/?run={RUN}"
        yield from _first(browser, url, what, rounds, aims=("1.0 s", "1.5 MB"))
        for rate in RATES:
            at = f"live, {rate:g} step{'' if rate == 1 else 's'}/s"
            num_bytes = _follow(browser, url, sender, rate, size.live_s)
            yield [f"{at}: bytes for a step", f"{num_bytes / 1e3:.1f} kB", "10 kB"]
        sender.close()


def _long(browser: Any, size: Size, rounds: int) -> Iterator[list[str]]:
    """Measure the run of many steps."""
    with aggregator() as service:
        made = long_run.make(service, size.long_steps, size.long_layers)
        url = f"{service.url}/?run={long_run.RUN}"
        steps = f"{made.steps:,} steps x {size.long_layers} layers"
        yield from _first(browser, url, f"{steps}, newest 512", rounds)
        yield from _first(browser, f"{url}&from=0", f"{steps}, all", rounds)
        layer = made.names[len(made.names) // 2]
        curve = f"/runs/{long_run.RUN}/series?format=safetensors&layer={layer}"
        times_s, num_bytes = long_run.ask(service, curve, size.requests)
        yield [
            f"`/series` of a layer, all {made.steps:,} steps, {num_bytes / 1e3:.0f} kB, p99",
            f"{1e3 * quantile(times_s, 0.99):.1f} ms (p50 {1e3 * quantile(times_s, 0.5):.1f})",
            "50 ms",
        ]
        per = made.steps * size.long_layers
        yield [
            "disk for a layer and step, before and after buckets are made",
            f"{made.every_step_bytes / per:.1f}, {made.with_buckets_bytes / per:.1f} bytes",
            "",
        ]


def _first(
    browser: Any, url: str, what: str, rounds: int, aims: tuple[str, str] = ("", "")
) -> Iterator[list[str]]:
    """Open an address in a fresh profile some times."""
    found: list[FirstPicture] = []
    for _ in range(rounds):
        with measured_tab(browser) as tab:
            found.append(tab.open(url))
    times_s = with_range([own.picture_ms / 1e3 for own in found], ".2f")
    yield [f"first useful picture, {what}", f"{times_s} s", aims[0]]
    most = max(own.num_bytes for own in found)
    yield [f"bytes transferred, {what}", f"{most / 1e6:.2f} MB", aims[1]]


def _follow(browser: Any, url: str, sender: _Sender, rate: float, seconds: float) -> float:
    """Watch a run that goes on; return the bytes that a step costs."""
    with measured_tab(browser) as tab:
        tab.open(url)
        before, began_s = tab.num_bytes, time.perf_counter()
        steps = round(rate * seconds)
        for step in range(1, steps + 1):
            sender.step()
            sender.forget_answers()
            tab.wait(max(0.0, 1e3 * (began_s + step / rate - time.perf_counter())))
        return (tab.num_bytes - before) / steps


class _Sender:
    """One rank that has sent a run of many layers, and can go on."""

    def __init__(self, service: Aggregator, size: Size) -> None:
        self._random = np.random.default_rng(1)
        self._usual = np.exp(self._random.normal(size=size.layers))
        self._bad = round(BAD_LAYER * size.layers), round(BAD_STEP * size.steps)
        self._next = 0
        self._peer = Peer(service.ingest, RUN)
        parts = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        self._peer.attach(
            [f"transformer.h.{n // 4}.{parts[n % 4]}.weight" for n in range(size.layers)]
        )
        for _ in range(size.steps):
            self.step()
            self._peer.acked()  # more than a few at once would be refused
        service.shows(self._peer)

    def step(self) -> None:
        """Send the next step."""
        norms = self._usual * np.exp(0.3 * self._random.normal(size=len(self._usual)))
        norms = norms.astype(np.float32).astype(np.float64)
        nans = np.zeros(len(norms), dtype=np.uint64)
        layer, step = self._bad
        if self._next == step:
            norms[layer], nans[layer] = np.nan, 3
        none = Column.pack("<u8", [0] * len(norms))
        columns = {
            "l2": Column.pack("<f8", norms.tolist()),
            "l1": Column.pack("<f8", (200 * norms).tolist()),
            "linf": Column.pack("<f8", (0.05 * norms).tolist()),
            "zeros": none,
            "nans": Column.pack("<u8", nans.tolist()),
            "infs": none,
        }
        scalars = {"loss": 2.0 + 1 / (self._next + 1), "lr": 1e-3, "step_time_s": 0.2}
        self._peer.send(Stats(manifest_id=1, step=self._next, scalars=scalars, columns=columns))
        self._next += 1

    def forget_answers(self) -> None:
        """Read what the aggregator said, so that it does not pile up."""
        self._peer.received()

    def close(self) -> None:
        """Leave without a word."""
        self._peer.close()


def _notes(rounds: int) -> list[str]:
    about = (
        f"Medians of {rounds}, in brackets the least and the largest; each in a profile of its "
        "own, with nothing cached, 1280 x 800, over loopback, drawn without a GPU."
    )
    at_once = (
        "Bytes are those of the network, with headers. The page asks once a second at most: at "
        "10 steps/s one question brings ten steps."
    )
    useful = "The first useful picture is the frame that shows the verdict and layers x steps."
    return [about, useful, at_once]
