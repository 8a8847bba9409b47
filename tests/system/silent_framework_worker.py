"""A training under Lightning or the Trainer with a bug that leaves norms and loss healthy."""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")

STEPS = 60


def data() -> TensorDataset:
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(16 * STEPS, 32, generator=made)
    return TensorDataset(inputs, torch.randint(10, (16 * STEPS,), generator=made))


class Classifier(nn.Module):
    """Two layers, with the output that the Trainer asks for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.cross_entropy(self.net(inputs), labels)}

    def groups(self, bug: str) -> list[dict[str, Any]]:
        """The optimizer's groups; the last layer's has a rate of 0 if that is the bug."""
        *others, weight, bias = self.parameters()
        rate = 0.0 if bug in ("rate", "still-group") else 1e-3
        first = 0.0 if bug == "rate" else 1e-3
        return [{"params": others, "lr": first}, {"params": [weight, bias], "lr": rate}]


def train_with_lightning(run: str, bug: str) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from gradwatch.integrations.lightning import GradwatchCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Classifier()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.model(*batch)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.model.groups(bug))

        def optimizer_zero_grad(self, *arguments: Any) -> None:
            if bug != "not-zeroed":
                super().optimizer_zero_grad(*arguments)

    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[GradwatchCallback(run=run)],
    )
    trainer.fit(Module(), DataLoader(data(), batch_size=16))


def train_with_trainer(run: str, bug: str) -> None:
    from transformers import Trainer, TrainingArguments

    from gradwatch.integrations.huggingface import GradwatchCallback

    model = Classifier()
    if bug == "not-zeroed":
        model.zero_grad = lambda *_, **__: None  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            use_cpu=True,
            per_device_train_batch_size=16,
            num_train_epochs=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            lr_scheduler_type="constant",
        )
        pairs = zip(*data().tensors, strict=True)
        samples: Any = [{"inputs": inputs, "labels": label} for inputs, label in pairs]
        optimizer = torch.optim.Adam(model.groups(bug))
        trainer = Trainer(
            model=model, args=arguments, train_dataset=samples, optimizers=(optimizer, None)
        )
        trainer.add_callback(GradwatchCallback(trainer, run=run))
        trainer.train()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--bug", required=True)
    parser.add_argument("--framework", choices=["lightning", "trainer"], required=True)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    train = train_with_lightning if args.framework == "lightning" else train_with_trainer
    train(args.run, args.bug)


if __name__ == "__main__":
    main()
