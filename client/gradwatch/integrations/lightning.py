"""Lightning: a callback that watches the gradients of a `Trainer`'s model.

Typical use::

    from gradwatch.integrations.lightning import GradwatchCallback

    trainer = Trainer(callbacks=[GradwatchCallback()])

It works with `lightning` and with `pytorch_lightning`; where both are installed, with the one that
the training script has imported before.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch.integrations._training_watch import NO_SCALER, TrainingWatch

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:

    def _find_callback() -> type:
        packages = ("lightning.pytorch", "pytorch_lightning")
        for package in sorted(packages, key=lambda name: name not in sys.modules):
            try:
                return import_module(package).Callback
            except ModuleNotFoundError as error:
                if error.name not in (package, package.partition(".")[0]):
                    raise
        msg = "this callback needs Lightning; run: pip install lightning"
        raise ModuleNotFoundError(msg, name="lightning")

    Callback = _find_callback()


class GradwatchCallback(Callback):
    """Watches the gradients of every optimizer step of `Trainer.fit`.

    Steps have the number that `trainer.global_step` has while they are taken, also in a run that
    was resumed. With several optimizers, each of whose steps Lightning counts, they have the number
    that Lightning's loggers use, one for a round of all optimizers. The loss is the mean over the
    backward passes of the step. The run has the name and the version of the first logger, such as
    `lightning_logs-version_3`.

    Args:
        skip_bad_steps: Whether a step whose gradients are NaN or Inf on any rank changes nothing:
            they are dropped on all ranks, which agree on that in each step. Each step is then
            measured in full.
        settings: Keyword arguments of `gradwatch.attach`, such as `run`, `endpoint` or `every`.

    Raises:
        TypeError: If `attach` has no such argument. Nothing is raised into training.
    """

    def __init__(self, *, skip_bad_steps: bool = False, **settings: Any) -> None:
        super().__init__()
        self._training = TrainingWatch(settings, skip_bad_steps=skip_bad_steps)
        self._loss: Tensor | None = None  # 0-d, as given to backward: scaled and normalized

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the model as the strategy wrapped it, and to the optimizers."""
        training = self._training
        run = "" if training.is_named else _run_name(trainer, training)
        with training.faults.noting("lightning"):
            wrapped = trainer.strategy.model
            training.start(
                wrapped if isinstance(wrapped, nn.Module) else pl_module,
                trainer.optimizers,
                run=run,
                first_step=_first_step(trainer),
                total_steps=trainer.max_steps if trainer.max_steps > 0 else None,
                # In manual optimization the module may have one of its own.
                scaler=_scaler(trainer)
                or (NO_SCALER if pl_module.automatic_optimization else None),
            )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Say which batch the step under way is of."""
        with self._training.faults.noting("lightning"):
            self._training.annotate(batch=f"{batch_idx} of epoch {trainer.current_epoch}")

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Remember the loss until the backward pass shows to which step it belongs."""
        self._loss = loss.detach()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the loss to the step under way, and its number."""
        loss, self._loss = self._loss, None
        with self._training.faults.noting("lightning"):
            self._training.annotate(
                loss=None if loss is None else _as_returned(loss, trainer, pl_module),
                step=trainer.global_step if len(trainer.optimizers) == 1 else None,
            )

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Skip the step if it is bad, and that is wanted."""
        self._training.skip_if_bad(optimizer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the watch."""
        self._training.end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Close the watch and say that training failed."""
        self._training.end(exception)


def _run_name(trainer: Trainer, training: TrainingWatch) -> str:
    """Return one name for all ranks: a logger may count another version on each of them."""
    name = os.environ.get("GRADWATCH_RUN", "")
    with training.faults.noting("lightning"):
        name = name or _logger_name(trainer)
    if trainer.world_size > 1:
        # As the trainer does for its log directory; not in a step, but once before all of them.
        name = trainer.strategy.broadcast(name)
    return name


def _logger_name(trainer: Trainer) -> str:
    if trainer.logger is None:
        return ""
    name, version = trainer.logger.name or "", trainer.logger.version
    number = f"version_{version}" if isinstance(version, int) else str(version or "")
    return "-".join(part for part in (str(name), number) if part)


def _first_step(trainer: Trainer) -> int:
    if len(trainer.optimizers) > 1:
        return trainer.fit_loop.epoch_loop._batches_that_stepped
    return trainer.global_step


def _scaler(trainer: Trainer) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)


def _as_returned(loss: Tensor, trainer: Trainer, module: LightningModule) -> Tensor:
    """Undo what Lightning did to the loss that `training_step` returned, on the device."""
    scale = getattr(_scaler(trainer), "_scale", None)
    if isinstance(scale, Tensor):
        loss = loss / scale.to(loss.device)
    if module.automatic_optimization and trainer.accumulate_grad_batches > 1:
        loss = loss * trainer.accumulate_grad_batches
    return loss
