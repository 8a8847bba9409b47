"""Answers of gradwatch about a run: health and alerts over HTTP, records from the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Opened, Received
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_wire import Manifest, Stats
from gradwatch_wire.columns import L2
from gradwatch_wire.names import Label


@dataclass(slots=True)
class Recorded:
    """One STATS record.

    Args:
        rank: Who sent it.
        step: Training step.
        part: Which part of it.
        layers: L2 norm of what the rank holds of each layer, by the layer's name.
        shards: Which shard of each layer that is, `""` for the whole.
        labels: What the numbers are.
        scalars: Numbers of the whole step.
        taken: Whether the optimizer is said to have done the update.
    """

    rank: int
    step: int
    part: int
    layers: dict[str, float]
    shards: dict[str, str]
    labels: Mapping[str, Any]
    scalars: Mapping[str, float]
    taken: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """All of it.

    Args:
        health: The answer to `/runs/{run}/health` once the run has ended.
        alerts: The answer to `/runs/{run}/alerts`.
        records: The STATS of all ranks in the order of their arrival.
        orders: The order of layers that each manifest claims.
    """

    health: dict[str, Any]
    alerts: list[dict[str, Any]]
    records: list[Recorded]
    orders: list[str]

    def first_alert(self, rule: str) -> dict[str, Any] | None:
        own = [alert for alert in self.alerts if alert["rule"] == rule]
        return min(own, key=lambda alert: int(alert["first_step"]), default=None)


Log: TypeAlias = dict[str, tuple[list[Recorded], list[str]]]


def read_log(directory: Path) -> Log:
    """Return the records and the claimed orders of each run in a data directory at rest."""
    store = SQLiteStore.open(directory, Clock())
    found: Log = {}
    sessions: dict[bytes, tuple[str, int]] = {}
    manifests: dict[tuple[bytes, int], Manifest] = {}
    try:
        log = store.log
        for body in (own.body for run in log.runs() for _, own in log.entries(run)):
            if isinstance(body, Opened):
                sessions[body.session] = (body.hello.run, body.hello.rank)
                found.setdefault(body.hello.run, ([], []))
            elif isinstance(body, Received):
                session, record = body.envelope.session, body.envelope.record
                run, rank = sessions[session]
                if isinstance(record, Manifest):
                    manifests[session, record.manifest_id] = record
                    found[run][1].append(record.order)
                elif isinstance(record, Stats):
                    manifest = manifests[session, record.manifest_id]
                    found[run][0].append(_recorded(rank, record, manifest))
    finally:
        store.close()
    return found


def _recorded(rank: int, stats: Stats, manifest: Manifest) -> Recorded:
    shards = manifest.shards or ("",) * len(manifest.names)
    return Recorded(
        rank=rank,
        step=stats.step,
        part=stats.part,
        layers=dict(zip(manifest.names, stats.columns[L2].unpack(), strict=True)),
        shards=dict(zip(manifest.names, shards, strict=True)),
        labels=stats.labels,
        scalars=stats.scalars,
        taken=bool(stats.labels.get(Label.TAKEN)),
    )
