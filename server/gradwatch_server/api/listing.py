"""All runs in short, as `/runs` and `/metrics` show them: built once for each revision."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from gradwatch_server.api.problems import encode
from gradwatch_server.api.views import Views
from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.ranks import LastSeen
from gradwatch_server.core.views.runs import shorten
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.engine import Engine
from gradwatch_wire.health import AlertState, Phase, Status

SLICE: Final = 50
"""Runs that are summed up before others get their turn."""

SHARE: Final = 0.1
"""Time of the event loop that listings may take, however often somebody asks."""

SILENCE_EVERY_S: Final = 1.0
"""Time between two looks for ranks of any run that fell silent."""

MAX_REST_S: Final = 1.0
"""Longest time between two listings, however long one takes."""


@dataclass(slots=True)
class Summary:
    """A run in short.

    Args:
        view: The view of the run.
        tag: Changes whenever readers see something else of the run.
        encoded: The row of `/runs`, JSON.
        phase: The phase of its life.
        status: The status.
        score: The last health score, None without.
        lowest_score: The lowest one of the window, None without.
        norm: The last gradient norm over all layers and ranks, None if it is not known.
        nonfinite_steps: Steps of the window whose gradient norm was NaN or Inf.
        usual_step_time_s: Median of the newest gaps between steps, None while they are too few.
        ranks: State to the number of ranks in it.
        firing: Severity to the number of alerts that fire.
        rules: Rule and severity to the number of alerts that fire.
    """

    view: RunView
    tag: str
    encoded: bytes
    phase: Phase
    status: Status
    score: float | None
    lowest_score: float | None
    norm: float | None
    nonfinite_steps: int
    usual_step_time_s: float | None
    ranks: Mapping[str, int]
    firing: Mapping[str, int]
    rules: Mapping[tuple[str, str], int]
    _with_curve: tuple[int, bytes] | None = field(init=False, default=None)

    @property
    def key(self) -> tuple[int, str]:
        """Key by which the run last heard of comes last."""
        return self.view.updated_ns, self.view.name

    @property
    def step(self) -> int:
        """The step of its last frame, -1 without."""
        return -1 if self.view.frame is None else self.view.frame.step

    @property
    def has_ended(self) -> bool:
        """True once the run ended, failed or was lost."""
        return self.phase not in (Phase.WAITING, Phase.RUNNING)

    def row(self, spark: int | None) -> bytes:
        """Return the row of `/runs`, JSON; with a curve of so many values, if that is given."""
        if spark is None:
            return self.encoded
        if self._with_curve is None or self._with_curve[0] != spark:
            described = _describe_row(self.view, self.encoded, self.firing, spark)
            self._with_curve = spark, encode(described)
        return self._with_curve[1]


class RunListing:
    """The runs of an engine in short, for one event loop.

    Args:
        engine: The engine.
        views: Views of its runs.

    Attributes:
        number: Grows whenever readers see something else of any run.
    """

    def __init__(self, engine: Engine, views: Views) -> None:
        self.number = 0
        self._engine = engine
        self._views = views
        self._kept: dict[str, Summary] = {}
        self._runs: tuple[Summary, ...] = ()
        self._building = asyncio.Lock()
        self._of: tuple[int, str | None] = -1, None
        self._began_s = 0.0
        self._not_before_s = 0.0

    async def all(self) -> tuple[Summary, ...]:
        """Return all runs as they are after this call, the last one heard of first.

        Raises:
            HTTPException: 503, if the engine cannot build a view.
        """
        asked_s = time.monotonic()
        async with self._building:
            if self._began_s <= asked_s and not self._is_newest():
                await asyncio.sleep(self._not_before_s - time.monotonic())
                await self._build()
        return self._runs

    def _is_newest(self) -> bool:
        """Tell whether the listing is as it would be built now: nothing is new, no rank is late."""
        published = self._engine.published
        is_recent = time.monotonic() - self._began_s < SILENCE_EVERY_S
        return is_recent and self._of == (published.revision, published.fault)

    async def _build(self) -> None:
        began_s = time.monotonic()
        self._of = self._engine.published.revision, self._engine.published.fault
        views = await self._views.find_all(self._views.names)
        spent_s = 0.0
        found: dict[str, Summary] = {}
        for first in range(0, len(views), SLICE):
            slice_s = time.monotonic()
            for view in views[first : first + SLICE]:
                found[view.name] = self._sum_up(view)
            spent_s += time.monotonic() - slice_s
            await asyncio.sleep(0)
        if any(self._kept.get(name) is not own for name, own in found.items()) or len(found) != len(
            self._kept
        ):
            self.number += 1
            self._runs = tuple(sorted(found.values(), key=lambda own: own.key, reverse=True))
        self._kept, self._began_s = found, began_s
        self._not_before_s = time.monotonic() + min(spent_s * (1 / SHARE - 1), MAX_REST_S)

    def _sum_up(self, view: RunView) -> Summary:
        before, tag = self._kept.get(view.name), self._views.tag(view)
        if before is not None and before.tag == tag:
            return before
        published, now_ns = self._engine.published, self._engine.clock.now_ns()
        return _sum_up(view, tag, published.last_seen, now_ns, published.fault)


def _sum_up(
    view: RunView, tag: str, last_seen: LastSeen, now_ns: int, fault: str | None
) -> Summary:
    """Return a run in short at this moment."""
    report = health(view, last_seen, now_ns, fault)
    firing = [own for own in report["alerts"]["items"] if own["state"] == AlertState.FIRING]
    return Summary(
        view=view,
        tag=tag,
        encoded=encode(shorten(view, report)),
        phase=report["phase"],
        status=report["status"],
        score=report["score"]["last"],
        lowest_score=report["score"]["min"],
        norm=report["gradient_norm"]["last"],
        nonfinite_steps=report["gradient_norm"]["nonfinite_steps"],
        usual_step_time_s=report["usual_step_time_s"],
        ranks=Counter(rank["state"] for rank in report["ranks"]),
        firing=Counter(own["severity"] for own in firing),
        rules=Counter((own["rule"], own["severity"]) for own in firing),
    )


def _describe_row(
    view: RunView, encoded: bytes, firing: Mapping[str, int], spark: int
) -> dict[str, Any]:
    """Return a run in short with its small curve.

    Args:
        view: The run.
        encoded: The row of `/runs` without the curve, JSON.
        firing: Severity to the number of alerts that fire.
        spark: Values of the curve at most.
    """
    row: dict[str, Any] = json.loads(encoded)
    return row | {
        "step_time_s": None if view.frame is None else view.frame.step_time_s,
        "live_attempts": sum(each.is_live for each in (view, *view.others)),
        "alerts": dict(firing),
        "spark": small_curve(view, spark),
    }


def small_curve(view: RunView, most: int) -> list[float | None]:
    """Return the gradient norm over the window in *most* values; no maximum and no NaN is lost.

    Each stands for as many steps as the next, but the first, which may stand for fewer: its
    largest, NaN or Inf if there was one; null where nothing was known.
    """
    norms = np.where(view.series.known, view.series.total_norm, np.nan)
    bad = view.series.known & ~np.isfinite(view.series.total_norm)
    size = -(-len(norms) // most) if len(norms) else 1
    found: list[float | None] = []
    for end in range(len(norms), 0, -size):
        own = slice(max(end - size, 0), end)
        values = norms[own][~np.isnan(norms[own])]
        if bad[own].any():
            is_nan = np.isnan(norms[own][bad[own]]).any()
            found.append(float("nan") if is_nan else float("inf"))
        else:
            found.append(float(values.max()) if len(values) else None)
    return found[::-1]
