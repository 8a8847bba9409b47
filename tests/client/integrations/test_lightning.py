"""Lightning: what is sent is what Lightning itself says of each step."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.utilities import grad_norm
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import gradwatch
from gradwatch.integrations.lightning import GradwatchCallback
from tests.client.integrations.batches import batches
from tests.support.recording import Sink, numbers_are_those_of_the_training

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, about tiny trainings

Batch = tuple[Tensor, Tensor]


class Regression(LightningModule):
    """Two layers; the learning rate halves every second step, or is as told from one step on."""

    def __init__(self, raised: tuple[int, float] | None = None) -> None:
        super().__init__()
        seed_everything(0, verbose=False)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.raised = raised

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = Adam(self.parameters(), lr=0.01)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": StepLR(optimizer, 2, 0.5), "interval": "step"},
        }

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        if self.raised is not None and self.trainer.global_step >= self.raised[0]:
            for optimizer in self.trainer.optimizers:
                optimizer.param_groups[0]["lr"] = self.raised[1]


class Witness(Callback):
    """Notes what Lightning's own means say of each step, at the place they are documented for."""

    def __init__(self) -> None:
        self.said: list[dict[str, float]] = []
        self._losses: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self._losses.append(float(trainer.callback_metrics["loss"]))
        if self.said and "loss" not in self.said[-1] and len(self.said) == trainer.global_step:
            self.said[-1]["loss"] = sum(self._losses) / len(self._losses)
            self._losses.clear()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        self.said.append(
            {
                "step": trainer.global_step,
                "norm": float(grad_norm(pl_module, norm_type=2)["grad_2.0_norm_total"]),
                "lr": optimizer.param_groups[0]["lr"],
            }
        )


Fit = Callable[..., Trainer]


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """`fit(module, batches, *callbacks, **settings of the trainer)` without progress bars."""

    def run(
        module: LightningModule,
        batches: list[Batch],
        *callbacks: Callback,
        ckpt_path: str | None = None,
        **settings: Any,
    ) -> Trainer:
        quiet: dict[str, Any] = {
            "accelerator": "cpu",
            "max_epochs": 1,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "default_root_dir": tmp_path,
        }
        trainer = Trainer(callbacks=list(callbacks), **(quiet | settings))
        loader: DataLoader[Batch] = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]  # a list will do
        trainer.fit(module, loader, ckpt_path=ckpt_path, weights_only=False)
        return trainer

    return run


@pytest.fixture
def callback(aggregator: Sink) -> GradwatchCallback:
    return GradwatchCallback(endpoint=aggregator.endpoint)


def weights(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def assert_equal(some: list[Tensor], others: list[Tensor]) -> None:
    for one, other in zip(some, others, strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_each_record_names_its_batches(
    fit: Fit, callback: GradwatchCallback, aggregator: Sink
) -> None:
    fit(Regression(), batches(4), callback, accumulate_grad_batches=2, max_epochs=2)

    assert [stats.batch for stats in aggregator.stats(4)] == [
        f"{first} of epoch {epoch}; {first + 1} of epoch {epoch}"
        for epoch in range(2)
        for first in (0, 2)
    ]


@pytest.mark.parametrize("clip", [None, 0.1], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_each_record_is_what_lightning_says(
    fit: Fit,
    callback: GradwatchCallback,
    check: Any,
    farewell: Callable[[], str],
    accumulate: int,
    clip: float | None,
) -> None:
    """Norm before clipping, loss, learning rate and step; the last window is a short one."""
    settings = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    watched, plain, witness = Regression(), Regression(), Witness()
    fit(watched, batches(10), witness, callback, **settings)
    fit(plain, batches(10), **settings)

    check(witness.said)
    assert len(witness.said) == -(-10 // accumulate)
    assert all(said.keys() == {"step", "norm", "loss", "lr"} for said in witness.said)
    assert farewell() == "closed"
    assert_equal(weights(watched), weights(plain))


def test_a_resumed_run_goes_on_with_the_step_of_the_checkpoint(
    fit: Fit, callback: GradwatchCallback, check: Any, tmp_path: Path
) -> None:
    whole, witness = Regression(), Witness()
    fit(whole, batches(6), witness, max_epochs=2)
    fit(Regression(), batches(6)).save_checkpoint(tmp_path / "half.ckpt")
    resumed = Regression()
    fit(resumed, batches(6), callback, max_epochs=2, ckpt_path=str(tmp_path / "half.ckpt"))

    assert [stats.step for stats in check(witness.said[6:])] == [6, 7, 8, 9, 10, 11]
    assert_equal(weights(resumed), weights(whole))


def test_a_nan_batch_is_seen_in_its_step(fit: Fit, callback: GradwatchCallback, check: Any) -> None:
    witness = Witness()
    fit(Regression(), batches(8, bad=3), witness, callback)
    sent = check(witness.said)

    losses = [stats.scalars["loss"] for stats in sent]
    assert [step for step, loss in enumerate(losses) if math.isnan(loss)] == [3, 4, 5, 6, 7]


def test_an_explosion_has_its_true_norm_under_clipping(
    fit: Fit, callback: GradwatchCallback, check: Any, aggregator: Sink
) -> None:
    """The learning rate is raised at step 4; the loop clips to 1."""
    witness = Witness()
    fit(Regression((4, 50.0)), batches(8), witness, callback, gradient_clip_val=1.0)
    sent = check(witness.said)

    assert sent[4].scalars["lr"] == 50.0
    assert max(witness.said[step]["norm"] for step in range(5)) < 10
    assert max(aggregator.layers(sent[5]).values()) > 100


def test_under_a_loss_scale_norms_and_losses_are_true(
    fit: Fit, callback: GradwatchCallback, aggregator: Sink
) -> None:
    """Mixed precision with a GradScaler, whose first steps overflow and are skipped."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=100)
    precision = MixedPrecision("16-mixed", "cpu", scaler)
    witness = Witness()
    fit(Regression(), batches(12), witness, callback, plugins=[precision])
    sent = aggregator.stats(12)
    taken = [bool(stats.labels["taken"]) for stats in sent]
    true = [index for index, is_taken in enumerate(taken) if is_taken]
    norms = [math.hypot(*aggregator.layers(stats).values()) for stats in sent]

    assert [stats.step for stats in sent] == list(range(12))
    assert taken == [math.isfinite(said["norm"]) for said in witness.said]
    assert 0 < len(true) < 12
    assert [norms[index] for index in true] == pytest.approx(
        [witness.said[index]["norm"] for index in true], rel=1e-4
    )
    assert [stats.scalars["loss"] for stats in sent] == pytest.approx(
        [said["loss"] for said in witness.said], rel=1e-6
    )
    assert [stats.scalars["loss_scale"] for stats in sent] == [
        2.0 ** (20 - min(step, true[0])) for step in range(12)
    ]


class Adversaries(LightningModule):
    """Two networks with an optimizer each, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = nn.Linear(4, 8), nn.Linear(8, 1)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        optimizers = self.optimizers()
        assert isinstance(optimizers, list)
        critic, generator = optimizers
        for optimizer, sign in ((critic, 1.0), (generator, -1.0)):
            fake = self.generator(batch[0][:, :4])
            loss = sign * (self.critic(fake).mean() - self.critic(batch[0]).mean())
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.log(f"loss{sign}", loss)

    def configure_optimizers(self) -> Any:
        return [SGD(self.critic.parameters(), lr=0.1), SGD(self.generator.parameters(), lr=0.2)]


def test_a_round_of_two_optimizers_is_one_step(
    fit: Fit, callback: GradwatchCallback, aggregator: Sink
) -> None:
    """Lightning's loggers count these, its `global_step` counts two of them."""
    assert fit(Adversaries(), batches(5), callback).global_step == 10
    sent = aggregator.stats(10)

    assert [(s.step, s.part) for s in sent] == [(n, part) for n in range(5) for part in (0, 1)]
    assert {stats.scalars["lr"] for stats in sent} == {0.1, 0.2}
    assert all(
        critic.scalars["loss"] != generator.scalars["loss"]
        for critic, generator in zip(sent[::2], sent[1::2], strict=True)
    )


class LineSearch(Regression):
    """The optimizer evaluates its closure several times a step."""

    def configure_optimizers(self) -> Any:
        return LBFGS(self.parameters(), lr=0.1, max_iter=4)


def test_a_step_of_many_evaluations_has_the_loss_and_norm_it_began_with(
    fit: Fit, callback: GradwatchCallback, aggregator: Sink
) -> None:
    """The first of them, at the weights of the step before."""
    losses: dict[int, float] = {}

    class First(Callback):
        def on_before_backward(
            self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
        ) -> None:
            losses.setdefault(trainer.global_step, float(loss))

    witness = Witness()
    fit(LineSearch(), batches(3), First(), witness, callback)
    norms = {int(said["step"]): said["norm"] for said in reversed(witness.said)}
    sent = aggregator.stats(3)

    assert len(witness.said) > 3
    assert {stats.step: stats.scalars["loss"] for stats in sent} == losses
    found = {s.step: math.hypot(*aggregator.layers(s).values()) for s in sent}
    assert found == pytest.approx(norms, rel=1e-5)


def test_an_exception_is_the_users_and_the_run_has_failed(
    fit: Fit, callback: GradwatchCallback, farewell: Callable[[], str]
) -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
            if trainer.global_step == 3:
                raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match=r"^mine$"):
        fit(Regression(), batches(8), callback, Stop())

    assert farewell() == "exception"


def test_the_run_is_called_as_lightnings_logger_calls_it(
    fit: Fit, callback: GradwatchCallback, run_name: Callable[[], str], tmp_path: Path
) -> None:
    fit(Regression(), batches(1), callback, logger=CSVLogger(tmp_path, "a name", version=3))

    assert run_name() == "a-name-version_3"


@pytest.mark.parametrize("told", ["setting", "environment"])
def test_a_run_that_was_named_keeps_its_name(
    fit: Fit,
    aggregator: Sink,
    run_name: Callable[[], str],
    tmp_path: Path,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings: dict[str, Any] = {"run": "mine"} if told == "setting" else {}
    if told == "environment":
        monkeypatch.setenv("GRADWATCH_RUN", "mine")
    callback = GradwatchCallback(endpoint=aggregator.endpoint, **settings)
    fit(Regression(), batches(1), callback, logger=CSVLogger(tmp_path, "other"))

    assert run_name() == "mine"


def test_what_attach_refuses_does_not_disturb_training(
    fit: Fit, caplog: pytest.LogCaptureFixture
) -> None:
    callback = GradwatchCallback(endpoint="nowhere")
    with caplog.at_level(logging.WARNING, "gradwatch"):
        trainer = fit(Regression(), batches(2), callback)

    assert trainer.global_step == 2
    assert ["endpoint: 'nowhere' is not like" in line for line in caplog.messages] == [True]


def test_an_unknown_setting_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="'evry'"):
        GradwatchCallback(evry=2)


def test_a_second_fit_is_watched_anew(
    fit: Fit, callback: GradwatchCallback, aggregator: Sink
) -> None:
    fit(Regression(), batches(2), callback)
    fit(Regression(), batches(2), callback)

    assert [stats.step for stats in aggregator.stats(4)] == [0, 1, 0, 1]
    assert len(aggregator.hellos) == 2


class Attached(Regression):
    """Attaches by itself, to what `self.optimizers()` returns."""

    def __init__(self, endpoint: str, optimizer: Callable[..., Optimizer] = SGD) -> None:
        super().__init__()
        self.endpoint = endpoint
        self.optimizer = optimizer
        self.watch: Any = None

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), lr=0.05)

    def on_train_start(self) -> None:
        self.watch = gradwatch.attach(self, self.optimizers(), run="test", endpoint=self.endpoint)  # type: ignore[arg-type]  # Lightning's wrapper

    def on_train_end(self) -> None:
        self.watch.close()


class ByHand(Attached):
    """Steps every second batch."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> None:  # type: ignore[override]
        self.manual_backward(super().training_step(batch, batch_idx))
        if batch_idx % 2:
            optimizer: Any = self.optimizers()
            self.clip_gradients(optimizer, 0.001, "norm")
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_attach_in_the_module_under_automatic_optimization(
    fit: Fit, aggregator: Sink, accumulate: int, clip: float | None
) -> None:
    """Its `step(closure)` has the backward pass in it; the norm is that before clipping."""
    module, witness = Attached(aggregator.endpoint), Witness()
    settings = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    fit(module, batches(12), witness, **settings)
    sent = aggregator.stats(12 // accumulate)
    norms = [math.hypot(*aggregator.layers(stats).values()) for stats in sent]

    assert norms == pytest.approx([said["norm"] for said in witness.said], rel=1e-5)
    assert [stats.step for stats in sent] == [said["step"] for said in witness.said]
    assert {stats.labels["point"] for stats in sent} == {"backward"}
    passes = [stats.scalars.get("collections", 1.0) for stats in sent]
    assert passes == [float(accumulate)] * len(sent)
    assert module.watch.stats()["faults"] == 0


def test_attach_in_the_module_under_manual_optimization(fit: Fit, aggregator: Sink) -> None:
    """The wrapper that `self.optimizers()` returns is unwrapped, and its steps are counted."""
    module = ByHand(aggregator.endpoint)
    fit(module, batches(12))
    sent = aggregator.stats(6)

    assert [stats.step for stats in sent] == list(range(6))
    assert all(math.hypot(*aggregator.layers(stats).values()) > 0.001 for stats in sent)
    assert module.watch.stats()["faults"] == 0


def test_attach_in_the_module_with_a_scaler_that_was_not_given(fit: Fit, aggregator: Sink) -> None:
    """Skipped steps first, as the scale is too large; then the numbers are unscaled."""
    module, witness = Attached(aggregator.endpoint), Witness()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    fit(module, batches(12), witness, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    sent = aggregator.stats(12)
    taken = [stats for stats in sent if stats.labels["taken"]]
    truth = [said["norm"] for said in witness.said if math.isfinite(said["norm"])]

    assert [stats.step for stats in sent] == list(range(12))
    assert 0 < len(taken) < 12
    norms = [math.hypot(*aggregator.layers(stats).values()) for stats in taken]
    assert norms == pytest.approx(truth, rel=1e-3)
    assert {stats.labels["scaled"] for stats in taken} == {False}


def test_a_bad_step_is_skipped_where_that_is_wanted(fit: Fit, aggregator: Sink) -> None:
    """As if its batch had not been there; it is told all the same."""
    skipping, plain = Regression(), Regression()
    callback = GradwatchCallback(endpoint=aggregator.endpoint, skip_bad_steps=True)
    fit(skipping, batches(8, bad=3), callback)
    fit(plain, batches(8))
    sent = aggregator.stats(8)

    assert [stats.labels["taken"] for stats in sent] == [step != 3 for step in range(8)]
    assert [math.isnan(sum(aggregator.layers(stats).values())) for stats in sent] == [
        step == 3 for step in range(8)
    ]
    assert all(weight.isfinite().all() for weight in weights(skipping))
    assert not all(map(torch.equal, weights(skipping), weights(plain)))


def test_without_a_bad_step_nothing_is_skipped(fit: Fit, aggregator: Sink) -> None:
    skipping, plain = Regression(), Regression()
    fit(skipping, batches(8), GradwatchCallback(endpoint=aggregator.endpoint, skip_bad_steps=True))
    fit(plain, batches(8))

    assert_equal(weights(skipping), weights(plain))
    assert {stats.labels["taken"] for stats in aggregator.stats(8)} == {True}


def test_a_scaler_that_skips_itself_is_left_alone(fit: Fit, aggregator: Sink) -> None:
    """It asks that each optimizer has a gradient."""
    skipping = Regression()
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=4.0))
    callback = GradwatchCallback(endpoint=aggregator.endpoint, skip_bad_steps=True)
    fit(skipping, batches(8, bad=3), callback, plugins=[plugin])

    assert all(weight.isfinite().all() for weight in weights(skipping))
    assert aggregator.stats(8)[3].labels["taken"] is False


TWO_RANKS = """
import json, pathlib, sys, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
from torch import nn
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import grad_norm
from torch.utils.data import DataLoader

class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        seed_everything(0, verbose=False)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.losses = []
    def training_step(self, batch, batch_idx):
        loss = self.net(batch).square().mean()
        self.losses.append(loss.item())
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

class Witness(Callback):
    norms = []
    def on_train_start(self, trainer, module):
        if sys.argv[2] == "skipping":
            trainer.strategy.model.register_comm_hook(None, damaged)
    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.norms.append(float(grad_norm(module, norm_type=2)["grad_2.0_norm_total"]))

def damaged(_, bucket):  # as faulty memory does, after the reduction
    def damage(future):
        is_bad = dist.get_rank() == 1 and len(damaged.module.losses) == 4
        return future.value()[0] * (float("nan") if is_bad else 0.5)
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(damage)

def fit(*callbacks):
    module = damaged.module = Regression()
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=0.1,
        logger=CSVLogger(sys.argv[1], "two"), callbacks=list(callbacks),
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    trainer.fit(module, DataLoader(torch.randn(16, 8, generator=torch.Generator().manual_seed(1))))
    return trainer, module

if sys.argv[2] != "plain":
    from gradwatch.integrations.lightning import GradwatchCallback
    skips = sys.argv[2] == "skipping"
    trainer, module = fit(Witness(), GradwatchCallback(skip_bad_steps=skips))
else:
    trainer, module = fit(Witness())
said = {"norms": Witness.norms, "losses": module.losses,
        "weights": [p.tolist() for p in module.parameters()]}
path = pathlib.Path(sys.argv[1], f"{sys.argv[2]}-{trainer.global_rank}.json")
path.write_text(json.dumps(said))
"""


@pytest.mark.exhaustive
def test_two_processes(aggregator: Sink, run_script: Any, tmp_path: Path) -> None:
    """DDP over gloo, started by Lightning itself, two micro-batches a step, clipped."""
    for which in ("watched", "plain"):
        done = run_script(TWO_RANKS, str(tmp_path), which)
        assert done.returncode == 0, done.stderr

    aggregator.stats(8)
    assert {hello.run for hello in aggregator.hellos.values()} == {"two-version_0"}
    numbers_are_those_of_the_training(aggregator, tmp_path)
    assert {hello.rank for hello in aggregator.hellos.values()} == {0, 1}


@pytest.mark.exhaustive
def test_a_step_that_is_bad_on_one_rank_is_skipped_on_all(
    aggregator: Sink, run_script: Any, tmp_path: Path
) -> None:
    done = run_script(TWO_RANKS, str(tmp_path), "skipping")
    assert done.returncode == 0, done.stderr
    one, other = (
        json.loads((tmp_path / f"skipping-{rank}.json").read_text("utf-8")) for rank in range(2)
    )
    taken = sorted((stats.step, stats.labels["taken"]) for stats in aggregator.stats(8))

    assert taken == [(step, step != 1) for step in range(4) for _ in range(2)]
    assert one["weights"] == other["weights"]
    assert "NaN" not in json.dumps(one["weights"])


@pytest.mark.exhaustive
def test_the_other_package_is_taken_by_who_imported_it(run_script: Any) -> None:
    """`pytorch_lightning` is the same library under another name."""
    done = run_script(
        "import warnings; warnings.simplefilter('ignore')\n"
        "import pytorch_lightning\n"
        "from gradwatch.integrations.lightning import GradwatchCallback\n"
        "print(issubclass(GradwatchCallback, pytorch_lightning.Callback))\n"
    )

    assert done.stdout == "True\n", done.stderr
