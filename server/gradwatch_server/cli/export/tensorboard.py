"""Exports as TensorBoard event files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from gradwatch_server.cli.export.about import RUN_NAMES, About
from gradwatch_server.cli.export.format import Format, library
from gradwatch_server.cli.export.page import RUN, Page, TableNumbers
from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.curves.buckets import STATS
from gradwatch_wire.columns import L2

PREFIX: Final = "gradwatch"
"""Beginning of the tags of all series."""


class TensorBoard(Format):
    """Event files, one per epoch: a series per number of the run and per column of a layer."""

    name = "tensorboard"
    columns = (L2,)
    needs = "tensorboardX.record_writer"

    def __init__(self, directory: Path, about: About) -> None:
        super().__init__(directory, about)
        self._open: dict[str, Any] = {}

    def add(self, page: Page) -> None:
        summary = _library("proto.summary_pb2").Summary
        series = list(_all_series(page, self._about))
        times_s = (page.times_ns / 1e9).tolist()
        for row, step in enumerate(page.steps.tolist()):
            values = [
                summary.Value(tag=tag, simple_value=value)
                for each in series
                for tag, value in each.at(row)
            ]
            self._event(page.epoch, step, times_s[row], summary=summary(value=values))

    def add_alerts(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Write each alert as a text at the step at which it fired, and where its page is."""
        text = _library("summary").text
        last = max((epoch[0] for epoch in self._about.facts["epochs"]), default=0)
        note = f"exported from [gradwatch]({self._about.page})"
        self._event(last, 0, 0.0, summary=text(f"{PREFIX}/run", note))
        for alert in alerts:
            step = alert["fired_step"] if alert["fired_step"] is not None else alert["first_step"]
            link = f"{self._about.page}&alert={alert['id']}"
            body = f"**{alert['severity']}** {alert['message']} ([{alert['id']}]({link}))"
            summary = text(f"{PREFIX}/alerts/{alert['rule']}", body)
            self._event(last, step or 0, _seconds(alert["updated_at"]), summary=summary)

    def _event(self, epoch: int, step: int, time_s: float, **body: Any) -> None:
        event = _library("proto.event_pb2").Event(wall_time=time_s, step=step, **body)
        self._file(epoch).write(event.SerializeToString())

    def _file(self, epoch: int) -> Any:
        """Return the file of an epoch: its steps went back, so that it is a run of its own."""
        folder = f"epoch-{epoch}" if len(self._about.facts["epochs"]) > 1 else ""
        if folder not in self._open:
            path = self._directory / folder / "events.out.tfevents.0.gradwatch"
            path.parent.mkdir(exist_ok=True)
            self._open[folder] = _library("record_writer").RecordWriter(str(path))
            version = _library("proto.event_pb2").Event(file_version="brain.Event:2")
            self._open[folder].write(version.SerializeToString())
        return self._open[folder]

    def close(self) -> None:
        for file in self._open.values():
            file.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Series:
    """Series over the steps of a page."""

    tags: Sequence[str]
    numbers: TableNumbers

    def at(self, row: int) -> list[tuple[str, float]]:
        """Return the tags and numbers of a step, of the series that have one."""
        there = np.flatnonzero(self.numbers.known[row]).tolist()
        values = self.numbers.values[row].tolist()
        return [(self.tags[at], values[at]) for at in there]


def _all_series(page: Page, about: About) -> Iterator[_Series]:
    """Yield the series of a page; of buckets min, max and mean, each under a tag of its own."""
    tags = [f"{PREFIX}/{name}" for name in RUN_NAMES]
    yield from _of_table(page, RUN, tags, slice(None))
    if about.choice.layers is None:
        return
    names = [layer["name"] for layer in about.layers]
    items = np.flatnonzero(page.places < len(names))  # later ones joined after the export began
    for column in about.choice.columns:
        tags = [f"{PREFIX}/layer/{names[place]}/{column}" for place in page.places[items]]
        yield from _of_table(page, column, tags, items)


def _of_table(
    page: Page, table: str, tags: Sequence[str], items: slice | IndexArray
) -> Iterator[_Series]:
    if table in page.rows:
        numbers = page.rows[table]
        yield _Series(tags, TableNumbers(numbers.values[:, items], numbers.known[:, items]))
    elif table in page.buckets:
        for stat in STATS[:-1]:
            values = page.buckets[table][stat].astype(np.float64)[:, items]
            yield _Series(
                [f"{tag}/{stat}" for tag in tags], TableNumbers(values, ~np.isnan(values))
            )


def _library(module: str) -> ModuleType:
    return library(f"tensorboardX.{module}", "tensorboard")


def _seconds(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
