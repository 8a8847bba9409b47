"""From a recorded run to the entries that the log of an aggregator would hold.

Sessions, manifests, records and events are those of the real client (`tests/benchmarks` compares
them with what `attach` sends); times are those of the recording.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from benchmarks.alerts.recorded import BoolArray, FloatArray, IntArray, Recorded
from gradwatch_server.core.entries import Body, Entry, Lost, Opened, Received
from gradwatch_wire import Bye, Column, Envelope, Event, Hello, Manifest, Record, Stats
from gradwatch_wire.columns import (
    COUNT_COLUMNS,
    INFS,
    L2,
    L2_MAX,
    L2_MEAN,
    LOCAL_L2,
    MEASURED_COLUMNS,
    NANS,
    STATISTIC_COLUMNS,
    UNKNOWN,
    UPDATE_COLUMNS,
    WEIGHT_COLUMNS,
)
from gradwatch_wire.limits import MAX_MANIFESTS, SESSION_BYTES
from gradwatch_wire.names import EventName, Label, LayerOrder, Point, Reduction, Scalar

START_NS: Final = 1_763_000_000 * 10**9
SECOND_NS: Final = 10**9
_L2: Final = MEASURED_COLUMNS.index(L2)
_NONFINITE: Final = [MEASURED_COLUMNS.index(NANS), MEASURED_COLUMNS.index(INFS)]


def entries(recorded: Recorded, from_step: int = 0, every: int = 1) -> Iterator[Entry]:
    """Yield the entries of a run, in order.

    Args:
        recorded: The run.
        from_step: Leave out what came before the records of this step.
        every: Spacing of the steps that the clients look at.
    """
    for _, own in steps(recorded, from_step, every):
        yield from own


def steps(
    recorded: Recorded, from_step: int = 0, every: int = 1
) -> Iterator[tuple[int, Sequence[Entry]]]:
    """Yield each step with its entries, and what ends the run as if it were a step more."""
    writer = _Writer(recorded, every)
    for step in range(0, len(recorded.rows), every):
        if step < from_step:
            writer.skip(step)
        else:
            yield step, writer.step(step)
    yield len(recorded.rows), list(writer.end())


class _Session:
    """Envelopes of one rank's client in one attempt."""

    def __init__(self, recorded: Recorded, rank: int, attempt: int) -> None:
        name = f"{recorded.parent or recorded.name} {rank} {attempt}".encode()
        self.id = hashlib.sha256(name).digest()[:SESSION_BYTES]
        self.hello = Hello(
            run=recorded.name if recorded.parent is None else recorded.parent,
            rank=rank,
            world=recorded.world,
            host="bench",
            job=f"{attempt}",
        )
        self._recorded = recorded
        self.seq = 0
        self._num_made = 0
        self._manifests: dict[bytes, int] = {}
        self._seen = np.zeros(len(recorded.layers), dtype=np.bool_)

    def envelope(self, record: Record) -> Received:
        self.seq += 1
        return Received(Envelope(session=self.id, seq=self.seq, low=1, record=record))

    def manifest(self, present: BoolArray, trainable: BoolArray) -> tuple[int, Manifest | None]:
        """Return the id for a set of layers, and its manifest if it is new, as the client does.

        Args:
            present: (layers,) which have a gradient.
            trainable: (layers,) which require one.
        """
        idle = self._seen & ~present
        frozen, unused = idle & ~trainable, idle & trainable
        key = b"".join(each.tobytes() for each in (present, frozen, unused))
        known = self._manifests.get(key)
        if known is not None:
            return known, None
        if len(self._manifests) >= MAX_MANIFESTS:
            del self._manifests[next(iter(self._manifests))]
        self._num_made += 1
        self._manifests[key] = self._num_made
        self._seen = self._seen | present
        chosen = np.flatnonzero(present).tolist()
        run = self._recorded
        beta2 = np.array(run.beta2 or [math.nan] * len(run.layers))[chosen]
        return self._num_made, Manifest(
            manifest_id=self._num_made,
            names=tuple(run.layers[place] for place in chosen),
            numel=Column.pack("<u8", [run.numel[place] for place in chosen]),
            dtypes=tuple(run.dtypes[place] for place in chosen),
            columns=tuple(column.name for column in STATISTIC_COLUMNS),
            order=LayerOrder.FORWARD if run.is_ordered else LayerOrder.REGISTRATION,
            frozen=tuple(run.layers[place] for place in np.flatnonzero(frozen)),
            unused=tuple(run.layers[place] for place in np.flatnonzero(unused)),
            optimizer=run.optimizer,
            beta2=Column.pack("<f8", beta2) if not np.isnan(beta2).all() else None,
        )


class _Writer:
    """Makes the entries of one step after the other."""

    def __init__(self, recorded: Recorded, every: int) -> None:
        self._recorded = recorded
        self._every = every
        self._rows = recorded.rows
        self._sessions: list[_Session] = []
        self._attempt = -1
        self._last_ns = START_NS
        self._own = {(step, rank): i for i, (step, rank) in enumerate(self._rows.own_at.tolist())}
        # The digest after a step is of the weights that the next one uses.
        digests = enumerate(self._rows.weights_at.tolist())
        self._digests = {-(-(step + 1) // every) * every: i for i, step in digests}
        self._updates = {step: i for i, step in enumerate(self._rows.updates_at.tolist())}
        reduction = Reduction.NONE if recorded.world == 1 else Reduction.MEAN
        self._labels = {
            Label.POINT.value: Point.COLLECT.value,
            Label.REDUCTION.value: reduction.value,
            Label.SCALED.value: False,
            Label.PATH.value: "rows",
        }

    def step(self, step: int) -> Sequence[Entry]:
        rows = self._rows
        bodies: list[Body] = []
        if rows.attempt[step] != self._attempt:
            bodies += self._attach(int(rows.attempt[step]))
        for session in self._sessions:
            bodies += self._rank(step, session)
        self._last_ns = START_NS + round(float(rows.seconds[step]) * SECOND_NS)
        return [Entry(self._last_ns, body) for body in bodies]

    def skip(self, step: int) -> None:
        """Go on as after `step`, without making its entries."""
        rows = self._rows
        if rows.attempt[step] != self._attempt:
            list(self._attach(int(rows.attempt[step])))
        present = rows.present[step]
        if not present.any():
            return
        for session in self._sessions:
            _, manifest = session.manifest(present, rows.trainable[step])
            session.seq += 1 + (manifest is not None) + (not rows.taken[step])

    def end(self) -> Iterator[Entry]:
        for session in self._sessions:
            yield Entry(self._last_ns, session.envelope(Bye()))

    def _attach(self, attempt: int) -> Iterator[Body]:
        """The processes of the last attempt were killed, and others come."""
        for session in self._sessions:
            yield Lost(session.id)
        self._attempt = attempt
        run = self._recorded
        self._sessions = [_Session(run, rank, attempt) for rank in range(run.world)]
        for session in self._sessions:
            yield Opened(session.id, session.hello)

    def _rank(self, step: int, session: _Session) -> Iterator[Body]:
        rows, rank = self._rows, session.hello.rank
        present = rows.present[step]
        places = np.flatnonzero(present)
        if not len(places):
            return
        number, manifest = session.manifest(present, rows.trainable[step])
        if manifest is not None:
            yield session.envelope(manifest)
        own = self._own.get((step, rank))
        values = rows.columns[step] if own is None else rows.own[own]
        values = values[:, places]
        columns = {
            name: _column(name, values[place])
            for place, name in enumerate(MEASURED_COLUMNS)
            if place not in _NONFINITE or values[_NONFINITE].any()
        }
        scalars = {
            Scalar.LOSS.value: float(rows.loss[step, rank]),
            Scalar.BATCH_SIZE.value: float(rows.batch_size[step, rank]),
            Scalar.LR.value: float(rows.lr[step]),
        }
        if not np.isnan(rows.loss_scale[step]):
            scalars[Scalar.LOSS_SCALE.value] = float(rows.loss_scale[step])
        if step and rows.attempt[max(0, step - self._every)] == rows.attempt[step]:
            seconds = float(rows.seconds[step] - rows.seconds[step - 1])
            scalars[Scalar.STEP_TIME_S.value] = seconds
        columns |= self._rare_columns(step, rank, places)
        if rows.earlier_l2.shape[1]:
            passes = np.vstack([rows.earlier_l2[step][:, places], values[_L2]])
            columns[L2_MAX] = _column(L2_MAX, np.max(passes, axis=0))
            columns[L2_MEAN] = _column(L2_MEAN, np.mean(passes, axis=0))
            is_bad = not np.isfinite(passes).all()
            scalars[Scalar.COLLECTIONS.value] = float(len(passes))
            scalars[Scalar.FIRST_NONFINITE_STEP.value] = float(step) if is_bad else math.nan
        if rows.local_l2.shape[1]:
            local = rows.local_l2[step, rank, places]
            columns[LOCAL_L2] = Column.of("<f8", local.astype("<f8").tobytes())
            scalars[Scalar.LOCAL_PROBE.value] = float(np.max(local, initial=UNKNOWN))
        taken = bool(rows.taken[step])
        if not taken:
            data = {"optimizer": 0, "loss_scale": float(rows.loss_scale[step])}
            yield session.envelope(Event(name=EventName.SKIPPED_STEP, step=step, data=data))
        labels = {**self._labels, Label.TAKEN.value: taken}
        if rows.carried[step]:
            labels[Label.CARRIED.value] = True
        yield session.envelope(
            Stats(manifest_id=number, step=step, labels=labels, scalars=scalars, columns=columns)
        )

    def _rare_columns(self, step: int, rank: int, places: IntArray) -> dict[str, Column]:
        """Return digests of the weights and sizes of the update, in the steps that have them."""
        found: dict[str, FloatArray] = {}
        if (digest := self._digests.get(step)) is not None:
            found |= zip(WEIGHT_COLUMNS, self._rows.weights[digest, rank], strict=True)
        if (look := self._updates.get(step)) is not None:
            found |= zip(UPDATE_COLUMNS, self._rows.updates[look, rank], strict=True)
        return {name: _column(name, values[places]) for name, values in found.items()}


def _column(name: str, values: FloatArray) -> Column:
    if name in COUNT_COLUMNS:
        return Column.of("<u8", values.astype("<u8").tobytes())
    return Column.of("<f8", values.astype("<f8").tobytes())
