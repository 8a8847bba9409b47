"""Training frameworks: who calls backward, who clips and who steps is theirs.

What each of them states of a step itself is compared with what is computed here; see `stated`.
Their libraries are imported by the loops that use them.
"""

from __future__ import annotations

from torch import nn

from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial


@loop("Lightning, automatic", gives_loss=False)
def lightning_automatic(trial: Trial) -> nn.Module:
    from benchmarks.loops.with_lightning import CLIP, Regression, fit

    module = Regression(trial, micro_batches=2)
    return fit(trial, module, accumulate_grad_batches=2, gradient_clip_val=CLIP)


@loop("Lightning, manual", gives_loss=False)
def lightning_manual(trial: Trial) -> nn.Module:
    from benchmarks.loops.with_lightning import ManualRegression, fit

    return fit(trial, ManualRegression(trial))


@loop("Lightning, DDP", gives_loss=False, ranks=2, has_group=False)
def lightning_ddp(trial: Trial) -> nn.Module:
    from lightning.pytorch.strategies import DDPStrategy

    from benchmarks.loops.with_lightning import CLIP, Regression, fit

    strategy = DDPStrategy(process_group_backend="gloo")
    return fit(trial, Regression(trial), devices=2, strategy=strategy, gradient_clip_val=CLIP)


@loop("Hugging Face Trainer", gives_loss=False)
def trainer_one(trial: Trial) -> nn.Module:
    from benchmarks.loops.with_trainer import train

    return train(trial, micro_batches=2)


@loop("Hugging Face Trainer, two processes", gives_loss=False, ranks=2, has_group=False)
def trainer_two(trial: Trial) -> nn.Module:
    from benchmarks.loops.with_trainer import train

    return train(trial, micro_batches=1)


@loop("Accelerate")
def accelerate_one(trial: Trial) -> nn.Module:
    from benchmarks.loops.with_accelerate import train

    return train(trial, micro_batches=2)


@loop("Accelerate, two processes", ranks=2, has_group=False)
def accelerate_two(trial: Trial) -> nn.Module:
    from benchmarks.loops.with_accelerate import train

    return train(trial, micro_batches=2)
