"""The labelled set for alerts: what is recorded is what a client sends, and labels are true."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from benchmarks.alerts import part
from benchmarks.alerts.families import FAMILIES, training_of
from benchmarks.alerts.faults import FAULTS
from benchmarks.alerts.faults.fault import Fault, Site
from benchmarks.alerts.gloo import record_gloo
from benchmarks.alerts.labels import is_harmful, label, part_of
from benchmarks.alerts.make import optimizers_of, record, split_of
from benchmarks.alerts.make import runs as all_runs
from benchmarks.alerts.measuring import checked
from benchmarks.alerts.recipe import Recipe
from benchmarks.alerts.recorded import Recorded, Split
from benchmarks.alerts.recording import Job, Meddler, Recorder, find_order
from benchmarks.alerts.replay import entries
from benchmarks.alerts.store import Collection, write
from benchmarks.alerts.training import Training
from gradwatch._watch.attach import UPDATES_EVERY
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.entries import Lost, Opened, Received
from gradwatch_wire import Event, Manifest, Stats, decode, encode
from gradwatch_wire.columns import MEASURED_COLUMNS, UNCHANGED
from tests.support.recording import Sink
from tests.support.whole_state import WholeState

STEPS: Final = 40
PLAIN: Final = Recipe(family="regression", steps=STEPS, optimizer="momentum", schedule="step")
RECIPES: Final = {
    "plain": PLAIN,
    "scaler": replace(PLAIN, precision="scaler"),
    "scaler-accumulated": replace(PLAIN, precision="scaler", accumulate=2),
    "thawed": replace(PLAIN, habit="thawed"),
    "gpt": replace(PLAIN, family="gpt", optimizer="adamw", batch=8, clip=1.0),
    "cnn": replace(PLAIN, family="cnn_batchnorm", width=8, batch=16, accumulate=2),
}
SLOW: Final = pytest.mark.slow


def made(recipe: Recipe) -> Training:
    return FAMILIES[recipe.family](recipe)


def trained(training: Training) -> Recorded:
    """Record a healthy run, and read it back as it was made."""
    order = find_order(training)
    recorder = Recorder(Job(training), order.names)
    for step in range(training.steps):
        recorder.step(step, Meddler())
    known = dict(training.named_parameters())
    return Recorded(
        name=training.recipe.name,
        family=training.name,
        seed=training.seed,
        world=training.world,
        split=Split.TUNE,
        layers=order.names,
        numel=tuple(known[name].numel() for name in order.names),
        dtypes=tuple(str(known[name].dtype).removeprefix("torch.") for name in order.names),
        is_ordered=order.is_ordered,
        rows=recorder.rows(),
        forked_at=training.steps,
        **optimizers_of(training, order.names),
    )


def records_of(recorded: Recorded, kind: type[Any]) -> list[Any]:
    bodies = (entry.body for entry in entries(recorded))
    records = (body.envelope.record for body in bodies if isinstance(body, Received))
    return [record for record in records if isinstance(record, kind)]


def train_with_client(training: Training, watch: Any, steps: int) -> None:
    """The loop that a user would write."""
    scaler = training.scaler
    for step in range(steps):
        training.set_rate(step)
        training.model.zero_grad(set_to_none=True)
        losses, samples = [], 0
        for micro in range(training.accumulate):
            loss, size = training.micro_loss(step, 0, micro)
            losses.append(loss.item())
            samples += size
            loss = loss / training.accumulate
            (loss if scaler is None else scaler.scale(loss)).backward()
        watch.collect(loss=sum(losses) / len(losses), batch_size=samples)
        for optimizer in training.optimizers:
            if scaler is not None:
                scaler.unscale_(optimizer)
            if training.clip is not None:
                torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.clip)
            optimizer.step() if scaler is None else scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        training.after_step(step)


# What is recorded is what a client sends


@pytest.mark.parametrize(
    "name", ["plain", "scaler", *(pytest.param(name, marks=SLOW) for name in list(RECIPES)[2:])]
)
def test_the_records_are_those_of_the_client(name: str, aggregator: Sink) -> None:
    recorded = trained(made(RECIPES[name]))
    training = made(RECIPES[name])
    watch = aggregator.attach(
        training.model, training.optimizers, scaler=training.scaler, columns=MEASURED_COLUMNS
    )
    train_with_client(training, watch, STEPS)
    watch.close()
    sent = aggregator.stats(STEPS)
    manifests = {each.manifest_id: each for each in aggregator.of(Manifest)}

    ours = records_of(recorded, Stats)
    declared = {each.manifest_id: each for each in records_of(recorded, Manifest)}
    assert [each.step for each in ours] == [each.step for each in sent] == list(range(STEPS))
    looks = [each.step for each in sent if UNCHANGED in each.columns]
    assert len(looks) >= STEPS // UPDATES_EVERY - 1, looks
    for mine, theirs in zip(ours, sent, strict=True):
        scalars = [
            {k: v for k, v in each.scalars.items() if k != "step_time_s"} for each in (mine, theirs)
        ]
        assert scalars[0] == pytest.approx(scalars[1], rel=1e-6, nan_ok=True)
        assert dict(mine.labels) | {"path": ""} == dict(theirs.labels) | {"path": ""}
        assert mine.columns.keys() == theirs.columns.keys()
        assert ("step_time_s" in mine.scalars) == ("step_time_s" in theirs.scalars)
        names = [declared[mine.manifest_id].names, manifests[theirs.manifest_id].names]
        for column in mine.columns:
            assert mine.columns[column].code == theirs.columns[column].code
            one, other = (
                dict(zip(own, each.columns[column].unpack(), strict=True))
                for own, each in zip(names, (mine, theirs), strict=True)
            )
            near = 1e-5 if column.startswith(("l1", "l2")) else 0
            assert one == pytest.approx(other, rel=near, abs=0, nan_ok=True), column
    # The first step's manifest may not know the forward order yet: the client has just seen it.
    last = declared[ours[-1].manifest_id], manifests[sent[-1].manifest_id]
    for field in fields(Manifest):
        if field.name != "manifest_id":
            assert getattr(last[0], field.name) == getattr(last[1], field.name), field.name
    skips = [records_of(recorded, Event), aggregator.of(Event)]
    assert skips[0] == skips[1]
    assert (len(skips[0]) > 0) == name.startswith("scaler")


def test_the_quick_statistics_are_those_of_the_client() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(size) * 10.0**-size for size in (1, 7, 40)] + [torch.zeros(3, 4)]
    assert checked(gradients)[3].tolist() == [0, 0, 0, 12]
    gradients[1][2] = torch.nan
    gradients[2][:3] = torch.inf
    columns = checked(gradients)
    assert columns[4].tolist() == [0, 1, 0, 0]
    assert columns[5].tolist() == [0, 0, 3, 0]


@pytest.mark.slow
def test_every_record_can_be_sent(runs: Collection) -> None:
    for name in runs.names:
        for entry in entries(runs.read(name)):
            if isinstance(entry.body, Received):
                envelope = entry.body.envelope
                assert decode(encode(envelope)) == envelope or "nan" in name or "collapse" in name


# Replay


def fold(some: Iterator[Any], state: WholeState | None = None) -> tuple[WholeState, list[Alert]]:
    state = state or WholeState()
    return state, [alert for entry in some for alert in state.apply(entry)]


@pytest.mark.slow
def test_the_core_takes_every_record(runs: Collection) -> None:
    for name in runs.names:
        recorded = runs.read(name)
        state, _ = fold(entries(recorded))
        (run,) = state.runs.values()
        assert run.num_lost == 0
        assert sum(each.counts.num_late for each in run.attempts) == 0
        assert sum(each.num_frames for each in run.attempts) == len(recorded.rows)
        assert all(session.num_unresolved == 0 for session in state.sessions.values())


@pytest.mark.slow
def test_a_nan_is_told_where_it_is(runs: Collection) -> None:
    recorded = runs.read("regression-0+nan_gradient")
    fault = recorded.fault
    assert fault is not None
    _, alerts = fold(entries(recorded))
    first = next(alert for alert in alerts if alert.rule == "nonfinite")
    assert first.origin.step == fault.first_step
    assert first.origin.layer in fault.layers


@pytest.mark.slow
def test_a_fork_is_its_parent_up_to_the_fault(runs: Collection) -> None:
    for name in runs.names:
        fork = runs.read(name)
        if fork.parent is None:
            continue
        parent = runs.read(fork.parent)
        whole = list(entries(fork))
        rest = list(entries(fork, from_step=fork.forked_at))
        before = whole[: len(whole) - len(rest)]
        assert before == list(itertools.islice(entries(parent), len(before)))
        assert before
        assert whole[len(before) :] == rest or "nan" in name  # NaN is not itself


@pytest.mark.slow
def test_a_resumed_run_has_attempts(runs: Collection) -> None:
    recorded = runs.read("regression-3")
    bodies = [entry.body for entry in entries(recorded)]
    assert sum(isinstance(body, Opened) for body in bodies) == 6
    assert sum(isinstance(body, Lost) for body in bodies) == 4
    state, _ = fold(entries(recorded))
    assert [each.number for each in state.runs["regression-3"].attempts] == [1, 2, 3]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    recorded = trained(made(Recipe(family="click", steps=6, world=4)))
    write(tmp_path, recorded)
    again = Collection(tmp_path).read(recorded.name)
    for name in type(recorded.rows).__slots__:
        np.testing.assert_array_equal(getattr(again.rows, name), getattr(recorded.rows, name))
    assert (again.layers, again.numel, again.world) == (recorded.layers, recorded.numel, 4)


def test_a_directory_without_runs_says_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="scripts/bench alerts"):
        Collection(tmp_path)


# Ranks


def test_simulated_ranks_have_the_gradients_of_all_their_data() -> None:
    """The mean over ranks of equal batches is the gradient of the mean loss over all of them."""
    training = made(replace(PLAIN, world=4))
    recorder = Recorder(Job(training.fork()), tuple(n for n, _ in training.named_parameters()))
    recorder.step(0, Meddler())
    torch.stack([training.micro_loss(0, rank, 0)[0] for rank in range(4)]).mean().backward()
    gradients = [each.grad for _, each in training.named_parameters() if each.grad is not None]
    np.testing.assert_allclose(recorder.last_columns[:3], checked(gradients)[:3], rtol=1e-4)


# Labels


@pytest.mark.slow
def test_labels_hold_what_was_done(runs: Collection) -> None:
    scaled = runs.read("regression-0+module_scaled")
    fault = scaled.fault
    assert fault is not None
    assert fault.module is not None
    healthy = runs.read("regression-0").rows
    place = scaled.layers.index(fault.layers[0])
    ratio = scaled.rows.column("l2")[fault.first_step, place]
    assert ratio / healthy.column("l2")[fault.first_step, place] == pytest.approx(30, rel=1e-4)
    assert fault.rules[0] == "exploding"
    replica = runs.read("regression-1+replica_corrupted").fault
    assert replica is not None
    assert replica.ranks
    assert all(name.startswith(f"{replica.module}.") for name in replica.layers)


@pytest.mark.parametrize(
    "variant",
    ["module_scaled", "nan_gradient", "rate_raised", "detached", "dead", "stall", "nan_loss"],
)
def test_a_label_is_refused_if_nothing_was_done(variant: str) -> None:
    """A fork in which the fault did not act."""
    job = Job(made(replace(PLAIN, steps=200)))
    recorder = Recorder(job, tuple(name for name, _ in job.training.named_parameters()))
    for step in range(20):
        recorder.step(step, Meddler())
    fault: Fault = FAULTS[variant](
        Site(job, recorder.layers, 20, recorder.last_columns, np.random.default_rng(0))
    )
    for step in range(20, 40):
        recorder.step(step, Meddler())
    rows = part_of(recorder.rows(), 20, 20)
    with pytest.raises(AssertionError):
        label(variant, fault, rows, rows)


def test_harm_is_a_loss_above_that_of_the_healthy_run() -> None:
    loss = 1.0 + 0.1 * np.random.default_rng(0).standard_normal(100)
    assert not is_harmful(loss, loss[::-1])
    assert is_harmful(loss, loss + 0.5)
    assert is_harmful(loss, np.where(np.arange(100) == 50, np.nan, loss))


# The set


def test_the_set_is_large_enough() -> None:
    whole = [training_of(family, seed) for family, seed, _ in all_runs()]
    steps = dict.fromkeys(Split, 0)
    for training in whole:
        steps[split_of(training)] += training.steps
    assert len(whole) + 3 * len(whole) >= 600
    assert steps[Split.FAMILIES] >= 160_000
    assert min(steps.values()) > 0
    assert {training.world for training in whole} == {1, 2, 4}
    assert sum(family.is_left_out for family in FAMILIES.values()) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_learns_or_at_least_stays_finite(family: str) -> None:
    rows = trained(training_of(family, 0, 60)).rows
    assert np.isfinite(rows.loss).all()
    assert rows.present.any(0).any()


@pytest.mark.slow
@pytest.mark.parametrize("variant", sorted(FAULTS))
def test_every_fault_is_what_it_says_somewhere(variant: str, tmp_path: Path) -> None:
    recipe = replace(PLAIN, steps=450, world=2 if FAULTS[variant].kind.needs == "ranks" else 1)
    if variant == "saturated":
        recipe = replace(recipe, family="saturating", depth=3)
    if FAULTS[variant].kind.needs == "scaler":
        recipe = replace(recipe, precision="scaler")
    if variant == "updates_lost":
        recipe = replace(recipe, precision="bfloat16")
    recorded = record(made(recipe), tmp_path, [variant])
    assert recorded.refused == ()
    assert recorded.forks == (variant,)
    fault = Collection(tmp_path).read(f"{recipe.name}+{variant}").fault
    assert fault is not None
    assert fault.name == variant


@pytest.mark.slow
@pytest.mark.parametrize("family", ["regression", "gpt"])
def test_simulated_ranks_have_the_numbers_of_real_ones(family: str) -> None:
    """DDP over gloo with a process per rank, and the ranks that are simulated in one."""
    recipe = Recipe(family=family, steps=12, world=2, optimizer="momentum", batch=8)
    real, simulated = record_gloo(recipe), trained(made(recipe))
    order = [simulated.layers.index(name) for name in real.layers]
    ours = simulated.rows
    np.testing.assert_allclose(
        real.rows.columns[:, :3], ours.columns[:, :3, order], rtol=1e-3, atol=1e-7
    )
    np.testing.assert_allclose(real.rows.local_l2, ours.local_l2[:, :, order], rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(real.rows.loss, ours.loss, rtol=1e-4)
    assert (real.rows.lr == ours.lr).all()
    state, _ = fold(entries(real))
    assert state.runs[real.name].current.num_frames == recipe.steps


def test_the_part_that_is_committed_is_small_and_of_many_families() -> None:
    runs = Collection(part.DIRECTORY)
    assert sum(path.stat().st_size for path in part.DIRECTORY.iterdir()) <= part.MAX_BYTES
    assert len(runs.names) == part.RUNS
    assert len({name.partition("-")[0] for name in runs.names}) >= 12
