"""`Stats.history`: loss, learning rate, time and skips of steps that have no record."""

from __future__ import annotations

import gc
import math
import sys
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from gradwatch._recording.overhead import Pace
from gradwatch._recording.schedule import SETTLING_STEPS
from gradwatch_wire.limits import MAX_HISTORY
from gradwatch_wire.records import Stats
from tests.client.watch.test_pace import EVERY, PROBING, RESTING, SetPace, backward, make, set_pace
from tests.support.recording import Sink

__all__ = ["set_pace"]

STEPS = 3 * EVERY + 10
RATE = 1e-3


def read(aggregator: Sink) -> dict[int, dict[str, float]]:
    """Return step to the numbers of its row, in the history of whichever record has it."""
    rows: dict[int, dict[str, float]] = {}
    for stats in aggregator.of_stats():
        for row in rows_of(stats):
            assert row["step"] not in rows
            assert row["step"] < stats.step
            rows[int(row["step"])] = row
    return rows


def rows_of(stats: Stats) -> list[dict[str, float]]:
    columns = {name: column.unpack() for name, column in stats.history.items()}
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("pace", [RESTING, Pace(EVERY, 1), Pace(EVERY, 4), Pace(EVERY)])
@pytest.mark.parametrize("give", ["annotate", "collect", "nothing"])
def test_each_step_without_a_record_has_a_row(
    aggregator: Sink, set_pace: SetPace, pace: Pace, give: str
) -> None:
    set_pace(pace)
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, RATE, overhead=0.01)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE / (1 + step)
        optimizer.zero_grad()
        for part in (0, 1):  # micro-batches
            backward(model, step)
            loss = torch.tensor(step + 10.0 * part)
            if give == "annotate":
                watch.annotate(loss=loss)
            elif give == "collect":
                watch.collect(loss=loss, batch_size=1 + part, micro_batch=part == 0)
            loss.zero_()
        optimizer.step()
    watch.close()
    recorded = [stats.step for stats in aggregator.of_stats()]
    rows = read(aggregator)
    assert sorted({*recorded, *rows}) == list(range(recorded[-1] + 1))
    assert not rows.keys() & {*recorded}
    assert len(recorded) < SETTLING_STEPS + 12
    more = {"annotate": 5.0, "collect": 20 / 3}
    for step, row in rows.items():
        assert row["lr"] == RATE / (1 + step)
        assert row.get("loss") == (None if give == "nothing" else pytest.approx(step + more[give]))
        assert row["looked_at"] == (pace.slices == 1)
        assert 0.0 < row["step_time_s"] < 60.0
        assert row.keys() == {"step", "lr", "step_time_s", "looked_at"} | (row.keys() & {"loss"})
    assert watch.stats()["faults"] == 0


@pytest.mark.parametrize("pace", [RESTING, Pace(EVERY, 4), Pace(EVERY)])
@pytest.mark.parametrize("give", ["annotate", "collect"])
@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_step_whose_loss_is_bad_is_measured(
    aggregator: Sink, set_pace: SetPace, pace: Pace, give: str, is_guarded: bool
) -> None:
    """Three in a row at most: a run that is broken must not cost more than a sound one."""
    set_pace(pace)
    model, bad = make(), [40, 90, 91, 92, 93, 94, 130]
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, step)
        loss = torch.tensor(math.nan if step in bad else 1.0)
        getattr(watch, give)(loss=loss)
        if not (is_guarded and step in bad):
            optimizer.step()
    watch.close()
    found = {stats.step: stats for stats in aggregator.of_stats()}
    due = {step for step in found if step % EVERY in {0, 1} or step < SETTLING_STEPS}
    measured = [step for step in found if step in bad]
    if pace is RESTING:  # a waking measures two in a row
        measured = [step for step in measured if step != 93]
    assert measured == [40, 90, 91, 92, 130]
    for step in measured:
        assert math.isnan(found[step].scalars["loss"])
        if pace is not RESTING or step in {40, 90, 130}:
            assert found[step].labels["point"] == "collect"
        assert found[step].labels["taken"] is not is_guarded
    assert found.keys() - due - {*bad} <= ({41, 131} if pace is RESTING else set())
    rows = read(aggregator)
    assert sorted({*found, *rows}) == list(range(max(found) + 1))
    assert {step for step, row in rows.items() if math.isnan(row["loss"])} == {
        93,
        94,
    } - found.keys()
    assert watch.stats()["faults"] == 0


def test_the_loss_of_a_step_that_is_taken_up_in_its_middle_is_that_of_all_its_passes(
    aggregator: Sink, set_pace: SetPace
) -> None:
    set_pace(PROBING)
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    for step in range(100):
        optimizer.zero_grad()
        for part in (1.0, 2.0, 6.0):
            bad = step == 50 and part == 2.0
            model(torch.full((3, 4), math.nan if bad else 1.0)).square().mean().backward()
            watch.annotate(loss=part)
        if step != 50:
            optimizer.step()
    watch.close()
    (stats,) = [stat for stat in aggregator.of_stats() if stat.step == 50]
    assert stats.scalars["loss"] == 3.0
    assert {row["loss"] for row in read(aggregator).values()} == {3.0}


@pytest.mark.parametrize("pace", [RESTING, Pace(EVERY, 1)])
def test_a_step_that_was_skipped_is_marked(aggregator: Sink, set_pace: SetPace, pace: Pace) -> None:
    set_pace(pace)
    model, skipped = make(), set(range(40, STEPS, 17))
    watch, optimizer = aggregator.attach_sgd(model, RATE, overhead=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, step)
        watch.annotate(loss=1.0)
        if step not in skipped:
            optimizer.step()
    watch.close()
    recorded = {stats.step for stats in aggregator.of_stats()}
    rows = read(aggregator)
    assert {step for step, row in rows.items() if row.get("skipped")} == skipped & rows.keys()
    assert skipped & rows.keys()
    assert max(recorded) > 2 * EVERY


def test_steps_that_a_scaler_skips_are_marked(aggregator: Sink) -> None:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    scaler = GradScaler("cpu", init_scale=1.0, growth_interval=10_000)
    watch = aggregator.attach(model, optimizer, every=10, scaler=scaler)
    for step in range(41):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        scaler.scale(loss * (math.inf if step in {13, 27} else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    watch.close()
    rows = read(aggregator)
    assert sorted(rows) == [step for step in range(40) if step % 10]
    assert [step for step, row in rows.items() if row.get("skipped")] == [13, 27]


@pytest.mark.parametrize("arguments", [{"every": 10}, {"report_every": 10}])
def test_it_comes_with_each_way_to_send_fewer_records(
    aggregator: Sink, arguments: dict[str, int]
) -> None:
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, RATE, **arguments)
    for step in range(41):
        optimizer.zero_grad()
        backward(model, step)
        if step % 2:
            watch.annotate(loss=float(step))
        optimizer.step()
    watch.close()
    rows = read(aggregator)
    recorded = {stats.step for stats in aggregator.of_stats()}
    assert {*rows} == set(range(max(recorded))) - recorded
    for step, row in rows.items():
        assert row["looked_at"] == (2 if "report_every" in arguments else 0)
        assert row["has_loss"] == step % 2
        assert row["loss"] == pytest.approx(step if step % 2 else math.nan, nan_ok=True)


def test_without_an_optimizer_each_collection_is_a_step(aggregator: Sink) -> None:
    model = make()
    watch = aggregator.attach(model, every=4)
    for step in range(9):
        model.zero_grad()
        backward(model, step)
        watch.collect(loss=float(step))
    watch.close()
    rows = read(aggregator)
    assert [(step, row["loss"]) for step, row in rows.items()] == [
        (step, float(step)) for step in (1, 2, 3, 5, 6, 7)
    ]
    assert all("lr" not in row for row in rows.values())


def test_where_each_step_has_a_record_there_is_none(aggregator: Sink) -> None:
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, RATE, every=1)
    for step in range(5):
        optimizer.zero_grad()
        backward(model, step)
        watch.annotate(loss=1.0)
        optimizer.step()
    watch.close()
    assert [stats.history for stats in aggregator.of_stats()] == [{}] * 5


def test_the_losses_of_several_optimizers_are_not_mixed(aggregator: Sink) -> None:
    models = make(), make()
    optimizers = [torch.optim.SGD(model.parameters(), RATE) for model in models]
    optimizers[1].param_groups[0]["lr"] = 2 * RATE
    watch = aggregator.attach(nn.ModuleList(models), optimizers, every=4)
    for step in range(9):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            backward(model, step)
            watch.annotate(loss=1.0)
            optimizer.step()
    watch.close()
    rows = read(aggregator)
    assert sorted(rows) == [1, 2, 3, 5, 6, 7]
    assert all("loss" not in row and row["lr"] == 2 * RATE for row in rows.values())


def test_of_very_many_steps_the_newest_have_a_row(aggregator: Sink) -> None:
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, every=MAX_HISTORY + 100)
    for _ in range(MAX_HISTORY + 101):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    watch.close()
    assert sorted(read(aggregator)) == list(range(101, MAX_HISTORY + 100))


def test_the_time_of_a_step_is_that_between_two_ends(aggregator: Sink) -> None:
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, every=8)
    before: list[float] = []
    after: list[float] = []
    for step in range(17):
        optimizer.zero_grad()
        backward(model)
        time.sleep(0.02 if step in {3, 11} else 0.0)
        before.append(time.perf_counter())
        optimizer.step()
        after.append(time.perf_counter())
    watch.close()
    rows = read(aggregator)
    assert {3, 11} <= rows.keys()
    for step, row in rows.items():
        least, most = before[step] - after[step - 1], after[step] - before[step - 1]
        assert least - 1e-6 <= row["step_time_s"] <= most + 1e-6


def test_a_row_costs_few_calls(aggregator: Sink, set_pace: SetPace) -> None:
    """A step that is only counted makes no call of torch but those of its own hooks."""
    gc.collect()  # a GradScaler that is still alive might be this training's
    set_pace(RESTING)
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    for step in range(SETTLING_STEPS + 6):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    calls: list[str] = []

    def count(frame: Any, event: str, _: object) -> None:
        own = "gradwatch" in frame.f_code.co_filename and "_meeting" not in frame.f_code.co_qualname
        if event == "call" and own:  # other watches of this process may still meet optimizers
            calls.append(frame.f_code.co_qualname)

    optimizer.zero_grad()
    backward(model)
    sys.setprofile(count)
    try:
        optimizer.step()
    finally:
        sys.setprofile(None)
    watch.close()
    assert len(calls) <= 8, calls
