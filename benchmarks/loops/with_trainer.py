"""Hugging Face's Trainer, on a small GPT-2 made from config. Its first step is number 1."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from benchmarks.loops.stated import check_loss, check_norm
from benchmarks.loops.trial import Trial
from benchmarks.loops.truth import Note
from benchmarks.loops.with_accelerate import forget_accelerator
from gradwatch.integrations.huggingface import GradwatchCallback

BATCH: Final = 2


class Texts(Dataset[dict[str, Tensor]]):
    """Random ones, the same in every trial."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.randint(32, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class NotingTrainer(Trainer):
    """Notes what is true after the last backward pass of a step, before the Trainer clips."""

    def __init__(self, trial: Trial, micro_batches: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.trial = trial
        self.micro_batches = micro_batches
        self.losses: list[float] = []
        self.note: Note | None = None
        self.add_callback(CompareLogs(self))

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run the forward and the backward pass of a micro-batch."""
        step, is_last = self.state.global_step + 1, len(self.losses) == self.micro_batches - 1
        self.trial.at(step, here=is_last)
        loss: Tensor = super().training_step(*args, **kwargs)
        self.losses.append(float(loss))
        if is_last:
            model, optimizer, total = self.model, self.optimizer, sum(self.losses)
            assert model is not None
            assert optimizer is not None
            self.note = self.trial.truth.step(step, model, optimizer, loss=total)
            self.losses.clear()
        return loss


class CompareLogs(TrainerCallback):
    """Compares what the Trainer logs of each step with what was noted."""

    def __init__(self, trainer: NotingTrainer) -> None:
        self.trainer = trainer

    def on_log(self, args: TrainingArguments, *_: Any, **settings: Any) -> None:
        note, logs = self.trainer.note, settings["logs"]
        if "grad_norm" not in logs or note is None:
            return
        check_norm(note, float(logs["grad_norm"]))
        assert note.lr == logs["learning_rate"], (note, logs)
        if args.world_size == 1:  # else it logs the mean over the ranks
            check_loss(note, logs["loss"])


def train(trial: Trial, *, micro_batches: int) -> nn.Module:
    """Train with the Trainer's defaults: fused AdamW, clipping, a falling learning rate."""
    config = GPT2Config(
        vocab_size=32,
        n_positions=8,
        n_embd=16,
        n_layer=3,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    trial.inject(model, "transformer.h.1.mlp.c_proj")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # about so small a training
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=micro_batches,
            max_steps=trial.steps,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            ddp_backend="gloo" if world > 1 else None,
        )
        texts = Texts(trial.steps * micro_batches * BATCH * world)
        trainer = NotingTrainer(trial, micro_batches, model=model, args=args, train_dataset=texts)
        if trial.is_watched:
            trainer.add_callback(GradwatchCallback(trainer, run=trial.run))
        trainer.train()
    forget_accelerator()
    return model
