"""Lightning: its Trainer calls backward, clips and steps, or by hand the module does."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any, Final

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import grad_norm
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader

from benchmarks.loops.networks import Network, loss_of
from benchmarks.loops.stated import check_norm
from benchmarks.loops.trial import Trial
from gradwatch.integrations.lightning import GradwatchCallback

CLIP: Final = 0.1


class Regression(LightningModule):
    """Notes what is true before the gradients are clipped."""

    def __init__(self, trial: Trial, micro_batches: int = 1) -> None:
        super().__init__()
        self.network = Network()
        self.trial = trial
        self.micro_batches = micro_batches
        self.losses: list[float] = []

    def training_step(self, batch: int) -> Tensor:
        """Return the loss of a batch, whose number is given."""
        step, micro = divmod(batch, self.micro_batches)
        self.trial.at(step, here=micro == self.micro_batches - 1)
        loss = loss_of(self.network, step, self.trial.rank, micro)
        self.losses.append(loss.item())
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Note the step: Lightning clips after this."""
        self.note(optimizer)

    def note(self, optimizer: Optimizer) -> None:
        mean = sum(self.losses) / len(self.losses)
        self.losses.clear()
        note = self.trial.truth.step(self.global_step, self, optimizer, loss=mean)
        check_norm(note, float(grad_norm(self, norm_type=2)["grad_2.0_norm_total"]))

    def configure_optimizers(self) -> Optimizer:
        return AdamW(self.parameters(), lr=0.01)


class ManualRegression(Regression):
    """Calls backward, clips and steps itself."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        self.automatic_optimization = False

    def training_step(self, batch: int) -> Tensor:
        loss = super().training_step(batch)
        optimizer: Any = self.optimizers()
        self.manual_backward(loss)
        self.note(optimizer.optimizer)
        self.clip_gradients(optimizer, CLIP, "norm")
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Do nothing: the gradients are clipped by now."""


def fit(trial: Trial, module: Regression, **settings: Any) -> nn.Module:
    """Train with Lightning's Trainer, whose settings are given."""
    trial.inject(module, "network.blocks.1.down")
    callbacks: list[Any] = [GradwatchCallback(run=trial.run)] if trial.is_watched else []
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # about so small a training
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            callbacks=callbacks,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            **settings,
        )
        numbers = torch.arange(trial.steps * module.micro_batches)
        loader: DataLoader[Any] = DataLoader(numbers, batch_size=None, collate_fn=int)  # type: ignore[arg-type]  # a tensor will do
        trainer.fit(module, loader)
    return module
