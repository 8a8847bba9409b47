"""Pages as series with a tag each, as trackers show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwatch_server.cli.export.about import RUN_NAMES, About
from gradwatch_server.cli.export.page import RUN, Numbers, Page
from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.series.buckets import STATS

PREFIX: Final = "gradwatch"
"""What the tags of all series begin with."""


@dataclass(frozen=True, slots=True, eq=False)
class Tagged:
    """Series over the steps of a page.

    Args:
        tags: (series,) what each is called.
        numbers: (steps, series) its numbers.
    """

    tags: Sequence[str]
    numbers: Numbers

    def at(self, row: int) -> list[tuple[str, float]]:
        """Return the tags and numbers of a step, of the series that have one."""
        there = np.flatnonzero(self.numbers.known[row]).tolist()
        values = self.numbers.values[row].tolist()
        return [(self.tags[at], values[at]) for at in there]


def tagged(page: Page, about: About) -> list[Tagged]:
    """Return the series of a page; of buckets min, max and mean, each under a tag of its own."""
    return list(_tagged(page, about))


def _tagged(page: Page, about: About) -> Iterator[Tagged]:
    tags = [f"{PREFIX}/{name}" for name in RUN_NAMES]
    yield from _of_table(page, RUN, tags, slice(None))
    if about.choice.layers is None:
        return
    names = [own.name for own in about.layers]
    items = np.flatnonzero(page.places < len(names))  # later ones joined after the export began
    for column in about.choice.columns:
        tags = [f"{PREFIX}/layer/{names[place]}/{column}" for place in page.places[items]]
        yield from _of_table(page, column, tags, items)


def _of_table(
    page: Page,
    table: str,
    tags: Sequence[str],
    items: slice | IndexArray,
) -> Iterator[Tagged]:
    if table in page.rows:
        own = page.rows[table]
        yield Tagged(tags, Numbers(own.values[:, items], own.known[:, items]))
    elif table in page.buckets:
        for stat in STATS[:-1]:
            values = page.buckets[table][stat].astype(np.float64)[:, items]
            yield Tagged([f"{tag}/{stat}" for tag in tags], Numbers(values, ~np.isnan(values)))


def epoch_folder(about: About, epoch: int) -> str:
    """Return what an epoch is kept apart by, empty if there is one only."""
    return f"epoch-{epoch}" if len(about.facts["epochs"]) > 1 else ""
