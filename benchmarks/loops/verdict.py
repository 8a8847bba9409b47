"""Compares what gradwatch says of a loop with what is true of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from benchmarks.loops.cell import Cell
from benchmarks.loops.harness import Outcome
from benchmarks.loops.stored import Recorded, Stored
from benchmarks.loops.truth import Note
from gradwatch_wire.names import Label, LayerOrder, Point, Scalar
from gradwatch_wire.norms import total_norm

COLUMNS: Final = ("step", "norm", "layer", "rank", "loss, lr", "weights", "graph breaks")
LOSS_TOLERANCE: Final = 1e-6

Row = dict[str, Cell]


def judge(outcome: Outcome) -> Row:
    """Return the cells of a loop's row."""
    row = {column: Cell() for column in COLUMNS}
    if outcome.failure:
        row["step"].expect(true=False, otherwise=outcome.failure)
        return row
    for variant, trial in outcome.ranks[0].items():
        if "watched" in variant:
            _judge_trial(row, outcome, variant, trial)
    return row


def _judge_trial(row: Row, outcome: Outcome, variant: str, trial: dict[str, Any]) -> None:
    kind, _, rest = variant.partition("-")
    bare = f"{kind}-bare"
    for rank, trials in enumerate(outcome.ranks):
        where = f"{variant}, rank {rank}"
        error = trials[variant]["error"]
        same = not error and trials[variant]["weights"] == trials[bare]["weights"]
        row["weights"].expect(true=same, otherwise=f"{where}: {error or 'other weights'}")
    if outcome.loop.is_compiled and kind == "none":
        _judge_compilations(row["graph breaks"], outcome, variant, bare)
    stored = outcome.stored.get(trial["run"])
    if stored is None:
        row["step"].expect(true=False, otherwise=f"{variant}: no run {trial['run']}")
        return
    said = _said(outcome, variant)
    has_loss = rest.endswith("loss") or not outcome.loop.gives_loss
    for rank, trials in enumerate(outcome.ranks):
        notes = [Note.from_json(plain) for plain in trials[variant]["notes"]]
        records = [record for record in stored.records if record.rank == rank]
        where = f"{variant}, rank {rank}"
        _judge_steps(row["step"], notes, records, where, said)
        for note, record in _pairs(notes, records):
            at = f"{where}, step {note.step}"
            _judge_norms(row["norm"], note, record, at, said, outcome.loop.tolerance)
            _judge_scalars(row["loss, lr"], note, record, at, said, has_loss=has_loss)
    notes = [Note.from_json(plain) for plain in trial["notes"]]
    _judge_totals(row["norm"], notes, stored, variant, outcome.loop.tolerance)
    _judge_fault(row, outcome, kind, trial, stored)


def _judge_compilations(cell: Cell, outcome: Outcome, variant: str, bare: str) -> None:
    """Compare graph breaks and graphs: one that is compiled anew is a further graph."""
    for rank, trials in enumerate(outcome.ranks):
        with_, without = trials[variant]["compiled"], trials[bare]["compiled"]
        cell.expect(true=without[1] > 0, otherwise="nothing was compiled")
        added = max(now - then for now, then in zip(with_, without, strict=True))
        cell.number = max(cell.number or 0, added)
        text = f"{variant}, rank {rank}: graph breaks and graphs are {with_}, without {without}"
        cell.expect(true=added <= 0, otherwise=text)


def _judge_steps(
    cell: Cell, notes: list[Note], records: list[Recorded], where: str, said: str
) -> None:
    """Compare which steps there are, and whether each was taken."""
    true = Counter((note.step, note.taken) for note in notes)
    told = Counter((record.step, record.taken) for record in records)
    extra, missing = sorted((told - true).elements()), sorted((true - told).elements())
    cell.expect(true=bool(true), otherwise=f"{where}: the loop noted no step")
    same = not extra and not missing
    cell.expect(true=same, otherwise=f"{where}: (step, taken) {extra}, true {missing}; {said}")


def _pairs(notes: list[Note], records: list[Recorded]) -> Iterator[tuple[Note, Recorded]]:
    """Yield what is true with what is told of it: the same step, some of the same layers."""
    left = list(records)
    for note in notes:
        for record in left:
            if record.step == note.step and record.layers.keys() & note.layers.keys():
                left.remove(record)
                yield note, record
                break


def _judge_norms(
    cell: Cell, note: Note, record: Recorded, at: str, said: str, tolerance: float
) -> None:
    """Compare the norms of whole layers; those of shards are put together first."""
    if record.labels.get(Label.SCALED, False) is None:
        cell.null(said or "the label scaled is null")
        return
    if missing := sorted(note.layers.keys() - record.layers.keys()):
        _null_or_wrong(cell, f"{at}: no norm of {missing}", said, about=missing)
    extra = sorted(record.layers.keys() - note.layers.keys())
    cell.expect(true=not extra, otherwise=f"{at}: norms of {extra}, which have no gradient")
    for name in note.layers.keys() & record.layers.keys():
        if not record.shards[name]:
            _judge_norm(
                cell, note.layers[name], record.layers[name], f"{at}, {name}", record, tolerance
            )


def _judge_norm(
    cell: Cell, true: float, told: float, what: str, record: Recorded, tolerance: float
) -> None:
    if not is_close(true, told, tolerance) and _is_after_clipping(record):
        cell.null("the norm at the end of the backward pass: the point is optimizer_step")
        return
    cell.expect(true=is_close(true, told, tolerance), otherwise=f"{what}: {told:g}, true {true:g}")


def _is_after_clipping(record: Recorded) -> bool:
    """Tell whether a record says that its numbers may be those after clipping."""
    return record.labels.get(Label.POINT) == Point.OPTIMIZER_STEP


def _judge_totals(
    cell: Cell, notes: list[Note], stored: Stored, variant: str, tolerance: float
) -> None:
    """Compare the total norm of each update, and each layer's where it is in shards."""
    for note in notes:
        own = [
            record
            for record in stored.records
            if record.step == note.step and record.layers.keys() & note.layers.keys()
        ]
        if not own or any(record.labels.get(Label.SCALED, False) is None for record in own):
            continue
        told = put_together(own)
        at = f"{variant}, step {note.step}"
        for name in told.keys() & note.layers.keys():
            _judge_norm(cell, note.layers[name], told[name], f"{at}, {name}", own[0], tolerance)
        if told.keys() == note.layers.keys():
            true_total, told_total = _total(note.layers.values()), _total(told.values())
            _judge_norm(cell, true_total, told_total, f"{at}, total", own[0], tolerance)


def put_together(records: Iterable[Recorded]) -> dict[str, float]:
    """Return the norm of each whole layer: its shards, each once, or the first rank's."""
    held: dict[str, dict[str, float]] = {}
    for record in records:
        for name, norm in record.layers.items():
            held.setdefault(name, {}).setdefault(record.shards[name], norm)
    return {name: _total(shards.values()) for name, shards in held.items()}


def _total(norms: Iterable[float]) -> float:
    return float(total_norm(np.array(list(norms)), np))


def is_close(true: float, told: float, tolerance: float) -> bool:
    """Tell whether two norms are the same: NaN only with NaN, Inf only with Inf."""
    if math.isnan(true) or math.isnan(told):
        return math.isnan(true) and math.isnan(told)
    return true == told or math.isclose(true, told, rel_tol=tolerance)


def _judge_scalars(
    cell: Cell, note: Note, record: Recorded, at: str, said: str, *, has_loss: bool
) -> None:
    rate = record.scalars.get(Scalar.LR)
    if rate is None:
        _null_or_wrong(cell, f"{at}: no lr", said, about=("lr",))
    else:
        cell.expect(true=rate == note.lr, otherwise=f"{at}: lr {rate:g}, true {note.lr:g}")
    loss = record.scalars.get(Scalar.LOSS)
    if has_loss and note.loss is not None:
        if loss is None:
            _null_or_wrong(cell, f"{at}: no loss", said, about=("annotate", "loss"))
        else:
            same = is_close(note.loss, loss, LOSS_TOLERANCE)
            cell.expect(true=same, otherwise=f"{at}: loss {loss:g}, true {note.loss:g}")


def _judge_fault(
    row: Row, outcome: Outcome, kind: str, trial: dict[str, Any], stored: Stored
) -> None:
    """Compare where a fault is said to have begun with where it did."""
    first, first_true = stored.health["first_bad"], _first_nonfinite(trial)
    at = first and first["step"]
    text = f"{kind}: first_bad is {first}, true {first_true}"
    row["step"].expect(true=at == first_true, otherwise=text)
    overflowed = first_true is not None and first_true < trial["fault"]["step"]
    if kind == "none" or (kind == "nan" and overflowed):
        return  # a GradScaler's first steps overflow by themselves
    rule = "nonfinite" if kind == "nan" else "exploding"
    alert = stored.first_alert(rule)
    said = _said(outcome, f"{kind}-watched")
    if alert is None and said and all(map(_is_after_clipping, stored.records)):
        row["step"].null(said)
        return
    if alert is None or (kind == "nan" and first is None):
        row["step"].expect(true=False, otherwise=f"{kind}: not told, alerts are {stored.alerts}")
        return
    why = "; ".join((alert["message"], *_orders(stored), *said.splitlines()))
    for told in [alert["origin"], *([first] if kind == "nan" else [])]:
        _judge_place(row, told, trial["fault"], kind, why, has_ranks=outcome.loop.ranks > 1)


def _judge_place(
    row: Row,
    told: Mapping[str, Any],
    true: Mapping[str, Any],
    kind: str,
    why: str,
    *,
    has_ranks: bool,
) -> None:
    """Compare one place that is named with the true one; null is what is not known."""
    step, layer, rank = told["step"], told["layer"], told["rank"]
    text = f"{kind}: at {step}, true {true['step']}"
    row["step"].expect(true=step == true["step"], otherwise=text)
    if layer is None:
        row["layer"].null(why)
    else:
        text = f"{kind}: in {layer}, true {true['layers']}"
        row["layer"].expect(true=layer in true["layers"], otherwise=text)
    text = f"{kind}: on rank {rank}, true {true['rank']}"
    if true["rank"] is None:  # on all of them
        row["rank"].expect(true=rank is None, otherwise=text)
    elif rank is None and has_ranks:
        row["rank"].null(why)
    elif has_ranks or rank not in {None, true["rank"]}:
        row["rank"].expect(true=rank == true["rank"], otherwise=text)


def _orders(stored: Stored) -> list[str]:
    """Return what the manifests say of the order of layers, if it is not known."""
    latest = stored.orders[-1:]
    return [f"the manifest's order is {order}" for order in latest if order != LayerOrder.FORWARD]


def _first_nonfinite(trial: dict[str, Any]) -> int | None:
    """Return the first step at which a gradient really was non-finite."""
    notes = map(Note.from_json, trial["notes"])
    bad = (n.step for n in notes if not all(map(math.isfinite, n.layers.values())))
    return min(bad, default=None)


def _null_or_wrong(cell: Cell, text: str, said: str, about: Sequence[str]) -> None:
    """Take in that something is missing: it is null if gradwatch said so, else wrong.

    Args:
        cell: Where it is missing.
        text: What is missing.
        said: All that the client warned of, a line each.
        about: Words, one of which is in a line that is about this.
    """
    own = [line for line in said.splitlines() if any(word in line for word in about)]
    if own:
        cell.null("; ".join(own))
    else:
        cell.expect(true=False, otherwise=f"{text}, without a word")


def _said(outcome: Outcome, variant: str) -> str:
    """Return what the client warned of in a trial, each line once, a line each."""
    lines: Mapping[str, None] = dict.fromkeys(
        line.removeprefix("warning: gradwatch: ")
        .removesuffix(" (told once)")
        .removesuffix("; training goes on")
        for trials in outcome.ranks
        for line in trials[variant]["said"]
        if line.startswith("warning")
    )
    return "\n".join(lines)
