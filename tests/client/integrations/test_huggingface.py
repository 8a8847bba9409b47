"""Hugging Face's Trainer: what is sent is what the Trainer itself logs of each step."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

import gradwatch
from gradwatch.integrations.huggingface import GradwatchCallback
from gradwatch_wire import Event
from tests.support.recording import Sink

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about tiny trainings


def gpt() -> GPT2LMHeadModel:
    set_seed(0)
    dropout: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, **dropout)
    return GPT2LMHeadModel(config)


def texts(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    made: list[dict[str, Tensor]] = []
    for number in range(count):
        ids = torch.randint(0, 64, (12,), generator=generator)
        labels = ids.clone()
        labels[: number % 5] = -100
        made.append({"input_ids": ids, "labels": labels})
    return made


NewTrainer = Callable[..., Trainer]


@pytest.fixture
def new_trainer(tmp_path: Path) -> NewTrainer:
    """`new_trainer(**settings)`: two samples a batch, every step logged, nothing reported."""

    def make(
        samples: list[dict[str, Tensor]] | None = None,
        model: nn.Module | None = None,
        kind: type[Trainer] = Trainer,
        **settings: Any,
    ) -> Trainer:
        usual: dict[str, Any] = {
            "output_dir": str(tmp_path / "out put"),
            "use_cpu": True,
            "per_device_train_batch_size": 2,
            "num_train_epochs": 1,
            "logging_steps": 1,
            "logging_nan_inf_filter": False,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "learning_rate": 1e-2,
        }
        arguments = TrainingArguments(**(usual | settings))
        data: Any = samples or texts(20)
        return kind(model=model or gpt(), args=arguments, train_dataset=data)

    return make


@pytest.fixture
def watched(aggregator: Sink, new_trainer: NewTrainer) -> NewTrainer:
    def make(*arguments: Any, **settings: Any) -> Trainer:
        trainer = new_trainer(*arguments, **settings)
        trainer.add_callback(GradwatchCallback(trainer, endpoint=aggregator.endpoint))
        return trainer

    return make


def test_the_status_of_a_kubeflow_job_is_left_to_the_trainer(
    watched: NewTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers 5 posts one itself: two would take turns."""
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "http://127.0.0.1:9")
    statuses: list[object] = []

    class Look(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch = callback._training.watch
            assert isinstance(watch, gradwatch.Watch)
            statuses.append(watch._sender._status)

    trainer = watched(max_steps=2)
    (callback,) = (
        callback
        for callback in trainer.callback_handler.callbacks
        if isinstance(callback, GradwatchCallback)
    )
    trainer.add_callback(Look())
    trainer.train()

    assert statuses == [None, None]


def logged(trainer: Trainer) -> list[dict[str, float]]:
    return [
        {
            "step": entry["step"],
            "norm": entry["grad_norm"],
            "loss": entry["loss"],
            "lr": entry["learning_rate"],
        }
        for entry in trainer.state.log_history
        if "grad_norm" in entry
    ]


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    assert one.model is not None
    assert other.model is not None
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("clip", [0.0, 0.1], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_each_record_is_what_the_trainer_logs(
    new_trainer: NewTrainer,
    watched: NewTrainer,
    check: Any,
    farewell: Callable[[], str],
    accumulate: int,
    clip: float,
) -> None:
    """Norm before clipping, loss, learning rate and step, also of a short last window."""
    settings = {"gradient_accumulation_steps": accumulate, "max_grad_norm": clip}
    plain, trainer = new_trainer(**settings), watched(**settings)
    plain.train()
    trainer.train()

    check(logged(trainer))
    assert len(logged(trainer)) == -(-10 // accumulate)
    assert farewell() == "closed"
    assert_same_weights(trainer, plain)
    assert "training_step" not in vars(trainer)


class OwnCallback(TrainerCallback):
    """Callback that a user writes in three lines, with steps that count from 0."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.watch: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.watch = gradwatch.attach(
            kwargs["model"],
            kwargs["optimizer"],
            run="test",
            endpoint=self.endpoint,
            first_step=state.global_step,
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.watch.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_attach_in_a_callback_of_ones_own(
    new_trainer: NewTrainer, aggregator: Sink, accumulate: int
) -> None:
    settings = {"gradient_accumulation_steps": accumulate, "max_grad_norm": 0.01}
    trainer, plain = new_trainer(texts(26), **settings), new_trainer(texts(26), **settings)
    callback = OwnCallback(aggregator.endpoint)
    trainer.add_callback(callback)
    trainer.train()
    plain.train()
    said = logged(trainer)
    sent = aggregator.stats(len(said))

    assert [stats.step for stats in sent] == [entry["step"] - 1 for entry in said]
    totals = [math.hypot(*aggregator.layers(stats).values()) for stats in sent]
    assert totals == pytest.approx([entry["norm"] for entry in said], rel=1e-4)
    passes = [stats.scalars.get("collections", 1.0) for stats in sent]
    assert passes == ([1.0] * 13 if accumulate == 1 else [4.0, 4.0, 4.0, 1.0])
    assert callback.watch.stats()["faults"] == 0
    assert_same_weights(trainer, plain)


@pytest.mark.exhaustive
def test_a_resumed_run_goes_on_with_the_step_of_the_checkpoint(
    new_trainer: NewTrainer, watched: NewTrainer, check: Any
) -> None:
    whole = new_trainer(save_strategy="steps", save_steps=4)
    whole.train()
    trainer = watched()
    trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-4")

    sent = check(logged(whole)[4:])
    assert [stats.step for stats in sent] == [5, 6, 7, 8, 9, 10]
    assert {stats.batch for stats in sent} == {""}  # batches that it passed over are not counted
    assert_same_weights(trainer, whole)


class BadBatch(Trainer):
    """A loss of NaN in the fourth step."""

    def compute_loss(self, *arguments: Any, **settings: Any) -> Any:
        loss: Any = super().compute_loss(*arguments, **settings)
        return loss * math.nan if self.state.global_step == 3 else loss


def test_a_nan_batch_is_seen_in_its_step(watched: NewTrainer, check: Any) -> None:
    trainer = watched(kind=BadBatch)
    trainer.train()
    sent = check(logged(trainer))

    bad = [stats.step for stats in sent if math.isnan(stats.scalars["loss"])]
    assert bad == [4, 5, 6, 7, 8, 9, 10]


def test_a_bad_step_is_skipped_where_that_is_wanted(
    new_trainer: NewTrainer, aggregator: Sink
) -> None:
    trainer = new_trainer(kind=BadBatch)
    callback = GradwatchCallback(trainer, endpoint=aggregator.endpoint, skip_bad_steps=True)
    trainer.add_callback(callback)
    trainer.train()
    sent = aggregator.stats(10)

    assert [stats.step for stats in sent if not stats.labels["taken"]] == [4]
    assert [stats.step for stats in sent if math.isnan(stats.scalars["loss"])] == [4]
    assert trainer.model is not None
    assert all(each.isfinite().all() for each in trainer.model.parameters())


@pytest.mark.slow
def test_each_record_names_its_batches(watched: NewTrainer, aggregator: Sink) -> None:
    watched(texts(8), gradient_accumulation_steps=2, num_train_epochs=2).train()

    assert [stats.batch for stats in aggregator.stats(4)] == [
        f"{first} of epoch {epoch}; {first + 1} of epoch {epoch}"
        for epoch in range(2)
        for first in (0, 2)
    ]


def test_the_loss_is_nan_where_the_trainers_filter_hides_it(
    watched: NewTrainer, aggregator: Sink
) -> None:
    """`logging_nan_inf_filter`, on by default, logs the mean of other steps in its place."""
    trainer = watched(kind=BadBatch, logging_nan_inf_filter=True)
    trainer.train()

    assert not math.isnan(logged(trainer)[3]["loss"])
    assert math.isnan(aggregator.stats(10)[3].scalars["loss"])


class Explosion(TrainerCallback):
    """The learning rate is raised to 10 from the fourth step on."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= 3:
            for group in kwargs["optimizer"].param_groups:
                group["lr"] = 10.0


def test_an_explosion_has_its_true_norm_under_clipping(
    watched: NewTrainer, aggregator: Sink, new_trainer: NewTrainer
) -> None:
    """The Trainer clips to 1 by default."""
    trainer = watched()
    trainer.add_callback(Explosion())
    trainer.train()
    sent = aggregator.stats(10)
    norms = [math.hypot(*aggregator.layers(stats).values()) for stats in sent]

    assert norms == pytest.approx([said["norm"] for said in logged(trainer)], rel=1e-4)
    assert [stats.scalars["lr"] for stats in sent[3:]] == [10.0] * 7
    assert max(norms[:4]) < 10 < max(norms[4:])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_bf16_autocast(watched: NewTrainer, check: Any, accumulate: int) -> None:
    trainer = watched(bf16=True, gradient_accumulation_steps=accumulate)
    trainer.train()
    sent = check(logged(trainer))

    assert {stats.labels["scaled"] for stats in sent} == {False}
    assert not any("loss_scale" in stats.scalars for stats in sent)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_fp16_with_a_scaler(watched: NewTrainer, check: Any, aggregator: Sink, optim: str) -> None:
    """Norms and losses are without the scale; skipped steps count, as they do in the Trainer.

    Accelerate makes a scaler on a GPU only. Here it gets one for the CPU, and goes the same way.
    """
    trainer = watched(fp16=True, max_grad_norm=0.1, optim=optim)
    accelerator = trainer.accelerator
    accelerator.scaler = GradScaler("cpu", init_scale=2.0**20, growth_interval=100)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"
    trainer.train()
    said = logged(trainer)
    sent = check(said)

    skipped = [entry["step"] for entry in said if not math.isfinite(entry["norm"])]
    assert 0 < len(skipped) < 10
    scales = [stats.scalars["loss_scale"] for stats in sent]
    assert scales == [2.0 ** (20 - min(step, len(skipped))) for step in range(10)]
    events = [event.step for event in aggregator.of(Event) if event.name == "skipped_step"]
    assert events == skipped
    not_taken = [stats.step for stats in sent if not stats.labels["taken"]]
    assert not_taken == skipped  # also where the optimizer is fused, and so called in any case


def test_without_the_trainer_norms_are_right_and_the_loss_is_said_to_be_unknown(
    new_trainer: NewTrainer, aggregator: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback in `Trainer(callbacks=[...])` cannot see it."""
    trainer = new_trainer(gradient_accumulation_steps=4)
    trainer.add_callback(GradwatchCallback(endpoint=aggregator.endpoint))
    with caplog.at_level(logging.WARNING, "gradwatch"):
        trainer.train()
    sent = aggregator.stats(3)
    norms = [math.hypot(*aggregator.layers(stats).values()) for stats in sent]

    assert norms == pytest.approx([said["norm"] for said in logged(trainer)], rel=1e-4)
    assert [stats.step for stats in sent] == [1, 2, 3]
    assert not any("loss" in stats.scalars for stats in sent)
    assert sum("GradwatchCallback(trainer)" in line for line in caplog.messages) == 1


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"run_name": "my run/2"}, "my-run-2"), ({}, "out-put")],
    ids=["run_name", "output_dir"],
)
def test_the_run_is_called_as_the_trainer_calls_it(
    watched: NewTrainer, run_name: Callable[[], str], settings: dict[str, str], name: str
) -> None:
    watched(texts(2), **settings).train()

    assert run_name() == name


def test_an_exception_is_the_users_and_the_run_has_failed(
    watched: NewTrainer, farewell: Callable[[], str]
) -> None:
    class Broken(Trainer):
        def compute_loss(self, *arguments: Any, **settings: Any) -> Any:
            if self.state.global_step == 2:
                raise RuntimeError("mine")
            return super().compute_loss(*arguments, **settings)

    trainer = watched(kind=Broken)
    with pytest.raises(RuntimeError, match=r"^mine$"):
        trainer.train()

    assert farewell() == "exception"


def test_what_attach_refuses_does_not_disturb_training(
    new_trainer: NewTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = new_trainer()
    trainer.add_callback(GradwatchCallback(trainer, endpoint="nowhere"))
    with caplog.at_level(logging.WARNING, "gradwatch"):
        trainer.train()

    assert trainer.state.global_step == 10
    assert ["endpoint: 'nowhere' is not like" in line for line in caplog.messages] == [True]


def test_an_unknown_setting_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="'evry'"):
        GradwatchCallback(evry=2)


@pytest.mark.exhaustive
def test_a_second_training_is_watched_anew(watched: NewTrainer, aggregator: Sink) -> None:
    """The Trainer counts from the beginning, in a session of its own."""
    trainer = watched(texts(4))
    trainer.train()
    trainer.train()

    assert [stats.step for stats in aggregator.stats(4)] == [1, 2, 1, 2]
    assert len(aggregator.hellos) == 2


TWO_RANKS = """
import json, pathlib, sys, warnings
warnings.simplefilter("ignore")
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
generator = torch.Generator().manual_seed(1)
ids = [torch.randint(0, 64, (12,), generator=generator) for _ in range(20)]
arguments = TrainingArguments(sys.argv[1], use_cpu=True, ddp_backend="gloo", logging_steps=1,
    per_device_train_batch_size=1, gradient_accumulation_steps=4, num_train_epochs=1,
    max_grad_norm=0.1, save_strategy="no", report_to=[], disable_tqdm=True, run_name="two")
trainer = Trainer(model, arguments, train_dataset=[{"input_ids": i, "labels": i} for i in ids])
if sys.argv[2] == "watched":
    from gradwatch.integrations.huggingface import GradwatchCallback
    trainer.add_callback(GradwatchCallback(trainer))
trainer.train()
said = {"log": trainer.state.log_history, "rank": arguments.process_index,
        "weights": {k: v.tolist() for k, v in trainer.model.state_dict().items()}}
path = pathlib.Path(sys.argv[1], f"{sys.argv[2]}-{arguments.process_index}.json")
path.parent.mkdir(exist_ok=True)
path.write_text(json.dumps(said))
torch.distributed.destroy_process_group()
"""


@pytest.mark.exhaustive
def test_two_processes(aggregator: Sink, torchrun: Callable[..., None], tmp_path: Path) -> None:
    """DDP over gloo: norms, and the mean of the ranks' losses, are the logged ones."""
    for which in ("watched", "plain"):
        torchrun(2, TWO_RANKS, str(tmp_path / "two"), which)

    def said(which: str, rank: int) -> Mapping[str, Any]:
        text = (tmp_path / "two" / f"{which}-{rank}.json").read_text("utf-8")
        found: Mapping[str, Any] = json.loads(text)
        return found

    log = [entry for entry in said("watched", 0)["log"] if "grad_norm" in entry]
    sent = sorted(aggregator.stats(2 * len(log)), key=lambda stats: int(stats.step))
    norms = [math.hypot(*aggregator.layers(stats).values()) for stats in sent]
    losses = [stats.scalars["loss"] for stats in sent]

    assert len(log) == 3
    assert [stats.step for stats in sent] == [1, 1, 2, 2, 3, 3]
    assert norms == pytest.approx([e["grad_norm"] for e in log for _ in range(2)], rel=1e-4)
    assert [sum(pair) / 2 for pair in zip(losses[::2], losses[1::2], strict=True)] == pytest.approx(
        [entry["loss"] for entry in log], rel=1e-6
    )
    assert {stats.labels["reduction"] for stats in sent} == {"mean"}
    assert {hello.rank for hello in aggregator.hellos.values()} == {0, 1}
    assert {hello.run for hello in aggregator.hellos.values()} == {"two"}
    for rank in (0, 1):
        assert said("watched", rank)["weights"] == said("plain", rank)["weights"]
