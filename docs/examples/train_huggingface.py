"""Trains a small GPT-2 with Hugging Face's Trainer; the eleventh text is longer than all others.

    gradwatch serve
    python docs/examples/train_huggingface.py
    gradwatch health huggingface-example

The embedding of its last position is NaN. gradwatch is in two lines: the import and the callback.
"""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gradwatch.integrations.huggingface import GradwatchCallback

LONG = 10  # texts count from 0, the Trainer's steps from 1


class Texts(Dataset[dict[str, Tensor]]):
    """Twenty texts, of 16 tokens one and of 15 the others."""

    def __init__(self) -> None:
        self.tokens = torch.randint(0, 128, (20, 16))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = self.tokens[index, : 16 if index == LONG else 15]
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train for 20 steps."""
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=128, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    )
    model.transformer.wpe.weight.data[15] = torch.nan
    with tempfile.TemporaryDirectory() as directory:
        args = TrainingArguments(
            output_dir=directory,
            run_name="huggingface-example",
            num_train_epochs=1,
            per_device_train_batch_size=1,
            train_sampling_strategy="sequential",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model, args, train_dataset=Texts())
        trainer.add_callback(GradwatchCallback(trainer))
        trainer.train()


if __name__ == "__main__":
    main()
