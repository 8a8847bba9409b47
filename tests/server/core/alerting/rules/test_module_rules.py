"""Modules that vanish, die, drift or lose their gradient: when that is told, and since when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.alerting.memory import Memories
from gradwatch_server.core.alerting.rules.layer_missing import MissingMemory
from gradwatch_server.core.state_codec import decode, encode
from tests.support.core import Cluster

ONES = (1.0, 1.0, 1.0, 1.0)
B_OFF = (1.0, 1.0, 0.0, 1.0)


def test_a_module_far_below_its_usual_norm_vanishes(training: Any) -> None:
    run = training()
    run.healthy(200)
    told = [run.go((1.0, 1.0, 0.02, 1.0), loss=1.02) for _ in range(24)]

    assert [events for events in told if events] == [[("vanishing", "firing", "warning")]]
    origin = run.last.origin
    assert (origin.layer, origin.rank) == ("b.weight", 0)
    assert origin.step == pytest.approx(200, abs=1)
    assert origin.usual == pytest.approx(1.0, rel=0.2)
    told = [run.go() for _ in range(24)]
    assert [events for events in told if events] == [[("vanishing", "resolved", "warning")]]


def test_a_module_that_falls_with_the_loss_is_nothing(training: Any) -> None:
    """A task that is solved has small gradients."""
    run = training()
    run.healthy(100)
    for step in range(100):
        assert run.go(0.96**step, loss=0.96**step) == []


def test_a_module_that_is_cut_off_by_depth_vanishes(training: Any) -> None:
    """10,000 times below the others from the first frame on, in the front half."""
    names = [f"h.{i}.weight" for i in range(6)]
    run = training(names=names)
    told = [run.go((1e-6, 1.0, 1.0, 1.0, 1.0, 1.0)) for _ in range(19)]
    assert [events for events in told if events] == [[("vanishing", "firing", "warning")]]
    assert run.last.origin.layer == "h.0.weight"

    run = training(names=names)  # in the back half it is no loss of gradient by depth
    for _ in range(19):
        assert run.go((1.0, 1.0, 1.0, 1.0, 1e-6, 1.0)) == []


def test_a_module_without_any_gradient_worth_a_name_vanishes(training: Any) -> None:
    run = training()
    run.healthy(40)
    told = [run.go((1e-9, 1e-9, 1.0, 1.0)) for _ in range(3)]
    assert told[2] == [("vanishing", "firing", "warning")]
    assert run.last.origin.layer in ("a.weight", "a.bias")
    assert run.job.health()["layers"]["vanishing"] == 2

    run = training()
    run.healthy(40)
    told = [run.go(1e-9) for _ in range(3)]
    assert told[2] == [("vanishing", "firing", "critical")]


@pytest.mark.slow
def test_a_bias_that_is_zero_by_mathematics_is_nothing(training: Any) -> None:
    """S12: the keys' biases of BERT; the weight of the module is alive."""
    run = training()
    run.healthy(400)
    run = training()
    for _ in range(400):
        assert run.go((1.0, 0.0, 1.0, 1.0)) == []
    assert run.job.health()["has_vanishing"] is False


def test_a_module_that_never_was_alive_is_info(training: Any) -> None:
    run = training()
    told = [run.go(B_OFF) for _ in range(200)]

    assert {event for events in told for event in events} == {("vanishing", "firing", "info")}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_idle_experts_and_rare_rows_raise_nothing_above_info(training: Any) -> None:
    """S12: three experts, each of them zero in most steps, for up to hundreds in a row."""
    run = training(names=("a.weight", "e0.weight", "e1.weight", "e2.weight"))
    random = np.random.default_rng(5)
    busy, told = 0, []
    for _ in range(2_000):
        busy = int(random.integers(3)) if random.random() < 0.05 else busy
        told += run.go([1.0, *(float(expert == busy) for expert in range(3))])

    assert {event for event in told if event[2] != "info"} == set()
    assert run.job.health()["status"] == "healthy"


def test_a_module_that_dies_is_told(training: Any) -> None:
    run = training()
    run.healthy(150)
    told = [run.go(B_OFF) for _ in range(6)]

    assert told == [[], [], [("dead_layer", "firing", "warning")], [], [], []]
    origin = run.last.origin
    assert (origin.step, origin.layer, origin.value) == (150, "b.weight", 0.0)
    assert [step for step, _ in origin.before] == list(range(145, 150))
    assert run.job.health()["layers"]["dead"] == run.job.health()["layers"]["vanishing"] == 1
    told = [run.go() for _ in range(3)]
    assert told[2] == [("dead_layer", "resolved", "warning")]


def test_of_modules_that_die_at_once_the_last_is_where_it_began(training: Any) -> None:
    """Zeros flow back from there; the model's last one is alive, so that it is not the loss."""
    run = training()
    run.healthy(150)
    for _ in range(3):
        run.go((0.0, 0.0, 0.0, 1.0))

    assert (run.last.rule, run.last.origin.layer) == ("dead_layer", "b.weight")
    assert (run.last.origin.step, run.last.num_layers) == (150, 3)


def test_of_a_whole_model_that_dies_nobody_knows_where(training: Any) -> None:
    """The loss may not depend on it any more. Nor is it known where the order is not."""
    for factors, settings in ((0.0, {}), ((0.0, 0.0, 0.0, 1.0), {"order": "registration"})):
        run = training(run=f"gpt {settings}", **settings)
        run.healthy(150)
        for _ in range(3):
            run.go(factors)

        dead = [alert for alert in run.job.alerts if alert.rule == "dead_layer"]
        assert [alert.origin.layer for alert in dead] == [None]
        assert dead[0].origin.step == 150


def test_a_module_that_was_zero_now_and_then_is_judged_by_that(training: Any) -> None:
    run = training()
    for step in range(200):
        assert run.go(B_OFF if step % 2 else ONES) == []
    told = [run.go(B_OFF) for _ in range(25)]

    first = next(i for i, events in enumerate(told) if events)
    assert 17 <= first <= 21
    assert told[first] == [("dead_layer", "firing", "info")]


def test_a_single_zero_gradient_is_nothing(training: Any) -> None:
    run = training()
    run.healthy(150)
    assert [run.go(B_OFF), run.go(0.0), run.go()] == [[], [], []]


@pytest.mark.slow
def test_norms_that_rise_as_the_learning_rate_falls_do_not_drift(training: Any) -> None:
    """A cosine to a hundredth raises them by ten."""
    run = training()
    for step in range(700):
        rate = 0.01 + 0.99 * 0.5 * (1.0 + float(np.cos(np.pi * min(step, 500) / 500)))
        assert run.go(rate**-0.5, lr=rate) == []


def test_a_layer_without_a_gradient_is_missing(training: Any) -> None:
    run = training()
    run.healthy(40)
    few = {"manifest_id": 2}
    run.job.declare(0, ("a.weight", "a.bias", "c.weight"), **few)
    told = [run.job.stats(0, step, [1.0, 1.0, 1.0], **few) for step in range(40, 44)]

    assert [len(alerts) for alerts in told] == [0, 0, 1, 0]
    alert = told[2][0]
    assert (alert.rule, alert.severity, alert.layers) == ("layer_missing", "info", ("b.weight",))
    assert (alert.origin.step, alert.origin.layer) == (40, "b.weight")
    assert alert.origin.usual == pytest.approx(1.0, rel=0.2)
    told = [run.job.stats(0, step, [1.0] * 4) for step in range(44, 47)]
    assert [[a.state.value for a in alerts] for alerts in told] == [[], [], ["resolved"]]


FEW = ("a.weight", "a.bias", "c.weight")


def without_b(run: Any, steps: range, **idle: Any) -> list[list[Any]]:
    """The alerts of some steps without `b.weight`, of which the manifest says what is given."""
    run.job.declare(0, FEW, manifest_id=2, **idle)
    return [run.job.stats(0, step, [1.0] * 3, manifest_id=2) for step in steps]


def test_a_layer_that_is_detached_is_a_warning_and_says_so(training: Any) -> None:
    run = training()
    run.healthy(40)
    told = without_b(run, range(40, 44), unused=("b.weight",))

    assert [len(alerts) for alerts in told] == [0, 0, 1, 0]
    alert = told[2][0]
    assert (alert.rule, alert.severity, alert.layers) == ("layer_missing", "warning", ("b.weight",))
    assert alert.message.startswith(
        "No gradient since step 40: b.weight, though it requires one (usual "
    )


@pytest.mark.slow
def test_a_layer_that_is_frozen_is_info_until_it_is_expected_no_more(training: Any) -> None:
    """Beside a group of layers that a user has given the same name."""
    run = training(groups={"frozen": (0, 2)})
    run.healthy(40)
    without_b(run, range(40, 400), frozen=("b.weight",), groups={"frozen": (0,)})
    told = run.job.alerts

    assert [(a.severity, a.group, a.change, a.layers) for a in told] == [
        ("info", "frozen layers", "firing", ("b.weight",)),
        ("info", "frozen layers", "resolved", ("b.weight",)),
    ]
    assert told[0].message.startswith("No gradient since step 40: b.weight, requires_grad is off (")
    assert (told[0].fired_step, told[1].resolved_by) == (42, "clear")


def test_an_alert_ends_when_its_layers_are_frozen(training: Any) -> None:
    run = training()
    run.healthy(40)
    without_b(run, range(40, 44), unused=("b.weight",))
    told = without_b(run, range(44, 70), frozen=("b.weight",))

    assert [step for step, alerts in enumerate(told, 44) if alerts] == [63]
    (over,) = told[19]
    assert (over.state.value, over.resolved_by) == ("resolved", "frozen")
    assert over.message.endswith("over at step 63: its layers are frozen")

    run = training()
    run.healthy(40)
    for _ in range(12):
        run.go((1.0, 1.0, 1e-9, 1.0))
    assert [alert.rule for alert in run.job.alerts] == ["vanishing"]
    without_b(run, range(52, 90), frozen=("b.weight",))
    later = [(alert.rule, alert.resolved_by) for alert in run.job.alerts[1:]]
    assert later == [("layer_missing", None), ("vanishing", "frozen")]


def test_a_layer_that_is_used_now_and_then_is_info(training: Any) -> None:
    names = ("a.weight", "e.0.weight", "e.1.weight", "c.weight")
    run = training(names=names)
    rest = {0: names[:1] + names[2:], 1: names[:2] + names[3:]}
    for expert, there in rest.items():
        run.job.declare(0, there, manifest_id=2 + expert, unused=(names[1 + expert],))
    run.healthy(40)
    assert run.job.stats(0, 40, [1.0] * 3, manifest_id=2) == []
    run.step = 40
    run.healthy(40)
    told = [run.job.stats(0, step, [1.0] * 3, manifest_id=3) for step in range(81, 84)]

    assert [(a.severity, a.layers) for a in told[2]] == [("info", ("e.1.weight",))]


def test_what_was_unused_and_came_back_is_known_after_a_restart(training: Any) -> None:
    run = training()
    run.healthy(40)
    without_b(run, range(40, 42), unused=("b.weight",))
    memory = run.job.attempt.closed.memories["layer_missing"]
    again = decode(encode(memory), MissingMemory)

    assert again.is_cut_off(2, run.job.names)
    assert again.missing.tolist() == [0, 0, 2, 0]
    run.job.stats(0, 42, [1.0] * 4)
    again = decode(encode(memory), MissingMemory)
    assert again.occasional == {"b.weight"}


def test_manifests_and_open_frames_keep_what_is_idle_over_a_restart() -> None:
    job = Cluster(world=2).start()
    for rank in range(2):
        job.declare(rank, ("a", "b"), manifest_id=2, unused=("c", "of no manifest"))
    job.stats(0, 0, [1.0] * 2, manifest_id=2)
    again = decode(encode(job.attempt), type(job.attempt))

    (known,) = {session.manifests[2].idle.unused.tobytes() for session in again.sessions.values()}
    assert np.frombuffer(known, dtype=np.int64).tolist() == [2]
    assert again.sessions[0].manifests[1].idle is None
    (waiting,) = again.open.frames._open.values()
    assert waiting.items[0, 0].idle.unused.tolist() == [2]
    assert encode(again) == encode(job.attempt)


def test_a_layer_that_is_missing_is_a_warning_with_the_loss(training: Any) -> None:
    run = training()
    run.healthy(200)
    few = {"manifest_id": 2}
    run.job.declare(0, ("a.weight", "a.bias", "c.weight"), **few)
    losses = [1.0] * 4 + [1.4] * 12
    told = [run.job.stats(0, s, [1.0] * 3, loss=loss, **few) for s, loss in enumerate(losses, 200)]

    missing = [a.severity.value for alerts in told for a in alerts if a.rule == "layer_missing"]
    assert missing[:2] == ["info", "warning"]


def test_layers_that_take_turns_or_all_change_are_not_missing(training: Any) -> None:
    run = training()
    for number, names in enumerate((("a.weight", "a.bias"), ("b.weight", "c.weight")), 2):
        run.job.declare(0, names, manifest_id=number)
    told = []
    for step in range(100):
        told += run.job.stats(0, step, [1.0, 1.0], manifest_id=2 + step % 2)
    for step in range(100, 200):
        told += run.job.stats(0, step, [1.0, 1.0], manifest_id=2)
    for step in range(200, 300):
        told += run.job.stats(0, step, [1.0, 1.0], manifest_id=3)

    assert told == []


def test_a_rank_that_is_gone_makes_no_layer_missing() -> None:
    job = Cluster(world=2, names=("a.w",))
    job.open(0)
    job.open(1)
    job.declare(0, ("a.w",))
    job.declare(1, ("b.w",))
    for step in range(50):
        job.stats(0, step, [1.0])
        job.stats(1, step, [1.0])
    job.lose(1)
    for step in range(50, 60):
        job.stats(0, step, [1.0])

    assert [alert.rule for alert in job.alerts] == ["liveness"]
    assert job.attempt.num_frames == 60


def test_a_seed_far_below_its_host_is_told(training: Any) -> None:
    """Per element, in 16 steps in a row; without groups of these names it says nothing."""
    names = ("host.w", "seed.w")
    run = training(names=names, groups={"host": (0,), "seed": (1,)})
    run.healthy(40)
    told = [run.go((1.0, 0.15), zeros=[0.0, 0.0]) for _ in range(20)]
    assert told == [[]] * 20
    told = [event for _ in range(20) for event in run.go((200.0, 0.15))]
    assert ("groups", "firing", "info") in told
    assert run.last.origin.threshold == 0.01 or run.last.rule != "groups"

    run = training(names=names)
    told = [event for _ in range(60) for event in run.go((1.0, 1e-4))]
    assert "groups" not in {event[0] for event in told}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_training_is_told_nothing_of(seed: int) -> None:
    """Warm-up, restarts of a cosine, a decay by steps, wide noise, short batches."""
    names = [f"h.{i}.{kind}" for i in range(4) for kind in ("weight", "bias")]
    job = Cluster(names=names).start()
    random = np.random.default_rng(seed)
    level = np.exp(random.normal(0.0, 0.7, len(names)))
    numel = np.array(job.attempt.layers.numel)
    for step in range(1_200):
        warm = min(1.0, (step + 1) / 100)
        rate = 0.1 * warm * (0.5 + 0.5 * float(np.cos(np.pi * (step % 400) / 400)) + 0.01)
        decay = 1.0 if step < 900 else 0.5
        common = np.exp(random.normal(0.0, 0.25)) * (2.0 if step % 25 == 24 else 1.0)
        early = 1.0 + 3.0 * np.exp(-step / 30)
        norms = level * common * early * decay * np.exp(random.normal(0.0, 0.2, len(names)))
        loss = 2.0 * early * float(np.exp(random.normal(0.0, 0.1)))
        zeros = np.floor(numel * random.uniform(0.0, 0.3, len(names)))
        job.step(step, norms.tolist(), loss=loss, lr=rate, zeros=zeros.tolist())

    assert [(a.rule, a.severity.value, a.fired_step) for a in job.alerts] == []


@pytest.mark.slow
def test_what_is_restored_goes_on_the_same(training: Any) -> None:
    def story(restarts: bool) -> list[Any]:
        run = training()
        told = []
        for step in range(330):
            if restarts and step % 7 == 3:
                memories = run.job.attempt.closed.memories
                run.job.attempt.closed.memories = decode(encode(memories), Memories)
                run.job.attempt.closed._rules = None
            factors = [1.0, 1.0, 1.02 ** max(0, step - 100), 0.0 if 200 < step < 210 else 1.0]
            told.append(run.go([f * (0.01 if 250 < step < 270 else 1.0) for f in factors]))
        return told

    assert story(restarts=True) == story(restarts=False)
