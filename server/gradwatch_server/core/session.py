"""One `attach` of one rank: who it is, what was stored of it, and what its manifests declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import IndexArray, numbers
from gradwatch_server.core.frames.frame import COLUMNS_READ, RankRecord, RecordColumns
from gradwatch_server.core.frames.idle import LayersWithoutGradient
from gradwatch_server.core.frames.layout import Layout
from gradwatch_server.core.frames.sizes import RECORD_BYTES, array_bytes, names_bytes
from gradwatch_server.core.frames.step_numbers import StepNumbers
from gradwatch_server.core.losses import Losses
from gradwatch_wire import Column, Event, Hello, Stats
from gradwatch_wire.columns import L2, WEIGHT_BITS
from gradwatch_wire.health import RankState
from gradwatch_wire.limits import MAX_STEP
from gradwatch_wire.names import EventName

EXCEPTION: Final = "exception"
"""Reason in the BYE of a rank that ended with an exception."""

SESSION_BYTES: Final = 3_000
"""Memory of a session beside the texts of its HELLO, measured with tracemalloc."""

TEXT_COPIES: Final = 3
"""Copies of these texts in memory: in the session, in the log's cache, and while it is saved. The
process grew by 35 kB for each of 5,000 sessions with 7.4 kB of them."""

ATTEMPT_BYTES: Final = 14_500
"""Memory of an attempt before its first record, measured likewise."""


@dataclass(frozen=True, slots=True)
class DeclaredManifest:
    """A manifest: what its records stand for, whether in forward order, and what is idle."""

    layout: Layout
    ordered: bool
    idle: LayersWithoutGradient | None = None

    @property
    def own_bytes(self) -> int:
        """Bytes in memory beside the layout, which others may share."""
        arrays = () if self.idle is None else (self.idle.frozen, self.idle.unused)
        return RECORD_BYTES + sum(map(array_bytes, arrays))

    @property
    def num_bytes(self) -> int:
        return self.own_bytes + self.layout.num_bytes


@dataclass
class RankSession:
    """One `attach` of one rank.

    Args:
        last_ns: When the log has its last sign of life, nanoseconds since the epoch.
        acked: Highest sequence number below which nothing is missing or not declared lost.
        num_unresolved: Records that fit no manifest.
        last_skipped: The last of them, -1 for none.
        pace: How often it measures, in words; empty for each step.
        every: Steps from one to the next that it wants to measure in full.
        last_step: Step of the last statistics stored, or that BYE told of; -1 for none.
        reason: What its BYE said, empty before.
        heard_ns: Its last sign of life in the log, or when the aggregator could be reached again.
        stepped_ns: When it took its last step, as far as is known; before, when it attached.
        lost_ns: When it was taken for lost, 0 unless it was and gave no sign of life since. What is
            sent in its place from files is none.
        beat_step: The last step that it told of in a BEAT since the last statistics, else -1.
        behind_frames: Frames in a row that closed two steps or more ahead of it.
        stack: Python stack of its training thread in its last hang, the innermost frame first.
        place: Place of the rank in the groups of the job, in words; empty if it is not known.
        is_bare: Whether its rank has no layers: then no step waits for it.
        revision: Counts the entries that are of it; readers keep what is unchanged.
    """

    id: bytes
    hello: Hello
    attempt: int
    last_ns: int
    state: RankState = RankState.ALIVE
    acked: int = 0
    num_stored: int = 0
    num_lost: int = 0
    num_unresolved: int = 0
    num_skipped: int = 0
    last_skipped: int = -1
    pace: str = ""
    every: int = 1
    last_step: int = -1
    reason: str = ""
    manifests: dict[int, DeclaredManifest] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    heard_ns: int = 0
    stepped_ns: int = 0
    lost_ns: int = 0
    is_replaced: bool = False
    is_from_files: bool = False
    beat_step: int = -1
    behind_frames: int = 0
    stack: str = ""
    stack_step: int = -1
    place: str = ""
    is_bare: bool = False
    revision: int = 0

    def __post_init__(self) -> None:
        self.heard_ns = self.heard_ns or self.last_ns
        self.stepped_ns = self.stepped_ns or self.last_ns
        self.manifests_bytes = sum(manifest.num_bytes for manifest in self.manifests.values())

    def record_progress(self, step: int, since_s: float | None, now_ns: int) -> None:
        """Note the last step that a BEAT tells of, and how long ago it was, if that is known."""
        self.last_ns = now_ns
        known = max(self.last_step, self.beat_step)
        then_ns = now_ns - round((since_s or 0.0) * 1e9)
        if step > known:  # its statistics are on their way
            self.beat_step, self.stepped_ns = step, then_ns
        elif since_s:
            self.stepped_ns = min(self.stepped_ns, then_ns)

    def wait_anew(self, now_ns: int) -> None:
        """Count from now: nobody could reach the aggregator before."""
        self.heard_ns = max(self.heard_ns, now_ns)
        self.stepped_ns = max(self.stepped_ns, now_ns)

    def declare(self, number: int, manifest: DeclaredManifest) -> DeclaredManifest | None:
        """Note what a manifest declared; return the one that it takes the place of, if any."""
        replaced = None if number not in self.manifests else self.pop_manifest(number)
        self.manifests[number] = manifest
        self.manifests_bytes += manifest.num_bytes
        return replaced

    def clear_manifests(self) -> None:
        self.manifests.clear()
        self.manifests_bytes = 0

    def pop_manifest(self, number: int) -> DeclaredManifest:
        """Let a manifest go, and return it; records of it fit none then."""
        manifest = self.manifests.pop(number)
        self.manifests_bytes -= manifest.num_bytes
        return manifest

    def read(self, stats: Stats, entry: int) -> RankRecord | None:
        """Return a record in the order of its manifest, None if it does not fit one."""
        if stats.manifest_id not in self.manifests:
            return None
        known = self.manifests[stats.manifest_id]
        columns: Mapping[str, Column] = stats.columns
        if not columns.keys() <= COLUMNS_READ:
            columns = {name: column for name, column in columns.items() if name in COLUMNS_READ}
        if L2 not in columns or columns[L2].size != known.layout.num_layers:
            return None
        outputs = None if stats.activations is None else numbers(stats.activations)
        if outputs is not None and len(outputs) != len(known.layout.modules):
            outputs = None  # costs its own numbers, not the record
        return RankRecord(
            self.hello.rank,
            known.layout,
            known.ordered,
            RecordColumns(entry, columns),
            stats.scalars,
            stats.labels,
            outputs,
            _weight_bits(stats, columns[L2].size) if WEIGHT_BITS in stats.columns else None,
            known.idle,
            stats.step,
            stats.part,
            stats.parts,
            stats.last_good_step,
            StepNumbers.read(stats.history, stats.step) if stats.history else None,
            stats.batch,
            self.place,
        )

    @property
    def hang_stack(self) -> str:
        """The stack of a hang that goes on, else empty."""
        is_there = self.state is RankState.ALIVE
        return self.stack if is_there and self.stack_step > self.last_step else ""

    def add_event(self, event: Event) -> None:
        """Count a step that was skipped once, for all its optimizers; keep pace and stack."""
        if event.name == EventName.PACE:
            self.pace, self.every = event.text, _checked_every(event.data.get("every"))
        if event.name == EventName.STACK:
            self.stack, self.stack_step = event.text, event.step
        if event.name == EventName.SKIPPED_STEP and event.step > self.last_skipped:
            self.num_skipped += 1
            self.last_skipped = event.step


def _checked_every(given: object) -> int:
    """Return what a client said of it; 1 if that makes no sense."""
    return given if type(given) is int and 1 <= given <= MAX_STEP else 1


def session_bytes(hello: Hello) -> int:
    texts = (hello.run, hello.host, hello.job, *hello.versions, *hello.versions.values())
    return SESSION_BYTES + TEXT_COPIES * names_bytes(texts)


def _weight_bits(stats: Stats, layers: int) -> IndexArray | None:
    """Return (layers,) the sums of the bits of the weights, None if they are of other layers."""
    column = stats.columns[WEIGHT_BITS]
    if column.code != "<u8" or column.size != layers:
        return None
    return np.frombuffer(column.data, dtype="<i8")
