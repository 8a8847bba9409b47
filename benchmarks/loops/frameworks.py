"""Training frameworks: who calls backward, who clips and who steps is theirs.

The norm that each of them states itself, before clipping, is compared with the one computed here.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from math import isclose, isfinite, isnan
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.loops.networks import Network, loss_of
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial
from benchmarks.loops.truth import Note
from gradwatch_wire.norms import total_norm

CLIP = 0.1
TOLERANCE = 1e-4
"""Relative difference of the norm that a framework states."""


def check(note: Note, stated: float) -> None:
    """Compare the norm of a note with what the framework says of the same step.

    Raises:
        RuntimeError: If they differ.
    """
    own = float(total_norm(torch.tensor(list(note.layers.values()), dtype=torch.float64), torch))
    if not (isclose(own, stated, rel_tol=TOLERANCE) or (isnan(own) and isnan(stated))):
        msg = f"step {note.step}: the framework states a norm of {stated:g}, computed {own:g}"
        raise RuntimeError(msg)


def check_loss(note: Note, stated: float) -> None:
    """Compare the loss with what the framework logs; a NaN it replaces by other steps' mean.

    Raises:
        RuntimeError: If they differ.
    """
    own = note.loss
    if own is None or (isfinite(own) and not isclose(own, stated, rel_tol=TOLERANCE)):
        msg = f"step {note.step}: the framework states a loss of {stated:g}, computed {own}"
        raise RuntimeError(msg)


def lightning_module(trial: Trial, *, micro_batches: int = 1, automatic: bool = True) -> Any:
    """Return a LightningModule that notes what is true."""
    from lightning.pytorch import LightningModule
    from lightning.pytorch.utilities import grad_norm

    class Regression(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = automatic
            self.network = Network()
            self.losses: list[float] = []

        def training_step(self, batch: int, batch_idx: int) -> Tensor:
            step, micro = divmod(batch_idx, micro_batches)
            is_last = micro == micro_batches - 1
            trial.at(step, here=is_last)
            loss = loss_of(self.network, step, trial.rank, micro)
            self.losses.append(loss.item())
            if not automatic:
                self.step_by_hand(loss / micro_batches, step=is_last)
            return loss

        def step_by_hand(self, loss: Tensor, *, step: bool) -> None:
            optimizer: Any = self.optimizers()
            self.manual_backward(loss)
            if step:
                self.clip_gradients(optimizer, CLIP, "norm")
                optimizer.step()
                optimizer.zero_grad()

        def on_after_backward(self) -> None:
            if len(self.losses) == micro_batches and not automatic:
                self.note()

        def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
            if automatic:  # otherwise clipped before
                self.note()

        def note(self) -> None:
            mean = sum(self.losses) / len(self.losses)
            self.losses.clear()
            optimizer: Any = self.optimizers(use_pl_optimizer=False)
            note = trial.truth.step(self.global_step, self, optimizer, loss=mean)
            check(note, float(grad_norm(self, norm_type=2)["grad_2.0_norm_total"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    return Regression()


def fit(trial: Trial, module: Any, *, batches: int, **settings: Any) -> nn.Module:
    """Train with Lightning."""
    from lightning.pytorch import Trainer
    from torch.utils.data import DataLoader

    from gradwatch.integrations.lightning import GradwatchCallback

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
        numbers: Any = list(range(batches))
        trainer.fit(module, DataLoader(numbers, batch_size=None))
    return module  # type: ignore[no-any-return]  # a LightningModule


@loop("Lightning, automatic", loss_lines=0)
def lightning_automatic(trial: Trial) -> nn.Module:
    module = lightning_module(trial, micro_batches=2)
    return fit(
        trial,
        module,
        batches=2 * trial.steps,
        accumulate_grad_batches=2,
        gradient_clip_val=CLIP,
    )


@loop("Lightning, manual", loss_lines=0)
def lightning_manual(trial: Trial) -> nn.Module:
    return fit(trial, lightning_module(trial, automatic=False), batches=trial.steps)


@loop("Lightning, DDP", loss_lines=0, ranks=2, has_group=False)
def lightning_ddp(trial: Trial) -> nn.Module:
    from lightning.pytorch.strategies import DDPStrategy

    return fit(
        trial,
        lightning_module(trial),
        batches=trial.steps,
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        gradient_clip_val=CLIP,
    )


def train_gpt2(trial: Trial, *, micro_batches: int) -> nn.Module:
    """Train a small GPT-2 with Hugging Face's Trainer; its first step is number 1."""
    from torch.utils.data import Dataset
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from gradwatch.integrations.huggingface import GradwatchCallback

    class Texts(Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return trial.steps * micro_batches * 2 * 2  # two texts in a batch, two ranks at most

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            ids = torch.randint(32, (8,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": ids, "labels": ids}

    class NotingTrainer(Trainer):
        losses: list[float] = []  # noqa: RUF012 - one trainer each
        note: Note | None = None

        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            step, is_last = self.state.global_step + 1, len(self.losses) == micro_batches - 1
            trial.at(step, here=is_last)
            loss: Tensor = super().training_step(*args, **kwargs)
            self.losses.append(float(loss))
            if is_last:
                optimizer: Any = self.optimizer
                self.note = trial.truth.step(step, gpt2, optimizer, loss=sum(self.losses))
                self.losses.clear()
            return loss

    class Compare(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "grad_norm" in logs and trainer.note is not None:
                check(trainer.note, float(logs["grad_norm"]))
                assert trainer.note.lr == logs["learning_rate"]
                if args.world_size == 1:  # else it logs the mean over the ranks
                    check_loss(trainer.note, logs["loss"])

    sizes = {"vocab_size": 32, "n_positions": 8, "n_embd": 16, "n_layer": 3, "n_head": 2}
    gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    trial.inject(gpt2, "transformer.h.1.mlp.c_proj")
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # about so small a training
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=micro_batches,
            max_steps=trial.steps,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            ddp_backend="gloo" if "RANK" in os.environ else None,
        )
        trainer = NotingTrainer(gpt2, args, train_dataset=Texts(), callbacks=[Compare()])
        trainer.losses = []
        if trial.is_watched:
            trainer.add_callback(GradwatchCallback(trainer, run=trial.run))
        trainer.train()
    forget_accelerator()
    return gpt2


@loop("Hugging Face Trainer", loss_lines=0)
def trainer_one(trial: Trial) -> nn.Module:
    return train_gpt2(trial, micro_batches=2)


@loop("Hugging Face Trainer, two processes", loss_lines=0, ranks=2, has_group=False)
def trainer_two(trial: Trial) -> nn.Module:
    return train_gpt2(trial, micro_batches=1)


def accelerate(trial: Trial, *, micro_batches: int) -> nn.Module:
    """Train in the loop of Accelerate's documentation."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=micro_batches)
    network = Network()
    trial.inject(network, "blocks.1.down")
    numbers: Any = torch.arange(trial.steps * micro_batches * accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(
        network,
        torch.optim.AdamW(network.parameters(), lr=0.01),
        DataLoader(numbers, batch_size=1),
    )
    trial.attach(model, optimizer)
    losses: list[float] = []
    step = 0
    for _ in loader:
        with accelerator.accumulate(model):
            micro = len(losses)
            trial.at(step, here=micro == micro_batches - 1)
            loss = loss_of(model, step, trial.rank, micro)
            accelerator.backward(loss)
            trial.tell_loss(loss)
            losses.append(loss.item())
            if accelerator.sync_gradients:
                mean = sum(losses) / len(losses)
                note = trial.truth.step(step, network, optimizer, loss=mean)
                stated: Any = accelerator.clip_grad_norm_(model.parameters(), CLIP)
                check(note, float(stated))
                losses.clear()
                step += 1
            optimizer.step()
            optimizer.zero_grad()
    forget_accelerator()
    return network


@loop("Accelerate")
def accelerate_one(trial: Trial) -> nn.Module:
    return accelerate(trial, micro_batches=2)


@loop("Accelerate, two processes", ranks=2, has_group=False)
def accelerate_two(trial: Trial) -> nn.Module:
    return accelerate(trial, micro_batches=2)


def forget_accelerator() -> None:
    """Let the next trial of this process begin anew: Accelerate keeps what it knows."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
