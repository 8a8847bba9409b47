"""Trains a small network with Lightning, in which the eleventh batch is spoilt.

    gradwatch serve
    python docs/examples/train_lightning.py
    gradwatch health lightning-example

gradwatch is in two lines: the import and the callback.
"""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gradwatch.integrations.lightning import GradwatchCallback

SPOILT = 10  # batches count from 0, and so do Lightning's steps
BATCH = 8


class Regression(LightningModule):
    """Two layers that learn a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002
        """Return the loss of (batch, 16) inputs and (batch, 1) targets."""
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the one optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Train for 20 steps."""
    inputs = torch.randn(20 * BATCH, 16)
    targets = inputs.sum(dim=1, keepdim=True)
    inputs[SPOILT * BATCH, 0] = torch.nan
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[GradwatchCallback(run="lightning-example")],
    )
    trainer.fit(Regression(), DataLoader(TensorDataset(inputs, targets), batch_size=BATCH))


if __name__ == "__main__":
    main()
