"""Hugging Face Transformers: a callback that watches the gradients of a `Trainer`'s model.

Typical use::

    from gradwatch.integrations.huggingface import GradwatchCallback

    trainer = Trainer(model, args, train_dataset=dataset)
    trainer.add_callback(GradwatchCallback(trainer))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    integrations,
)

from gradwatch.integrations._training_watch import NO_SCALER, TrainingWatch


class GradwatchCallback(TrainerCallback):
    """Watches the gradients of every optimizer step of `Trainer.train`.

    Steps have the number under which the Trainer logs them, also in a run that was resumed: the
    first is 1. The loss is this rank's share of what the Trainer logs with `logging_steps=1`, NaN
    where it is NaN. The run is called `args.run_name`, else by the last part of `args.output_dir`.

    Args:
        trainer: The trainer that the callback is added to. Callbacks see neither the loss of a step
            nor the model as it was wrapped for several ranks; without the trainer both are unknown.
        skip_bad_steps: Whether a step whose gradients are NaN or Inf on any rank changes nothing:
            they are dropped on all ranks, which agree on that in each step. Each step is then
            measured in full.
        settings: Keyword arguments of `gradwatch.attach`, such as `run`, `endpoint` or `every`.

    Raises:
        TypeError: If `attach` has no such argument. Nothing is raised into training.
    """

    def __init__(
        self, trainer: Trainer | None = None, *, skip_bad_steps: bool = False, **settings: Any
    ) -> None:
        self._training = TrainingWatch(settings, skip_bad_steps=skip_bad_steps)
        self._trainer = trainer
        self._own_step: Callable[..., Tensor] | None = None
        self._loss: Tensor | None = None  # 0-d, the sum over the micro-batches of this step so far
        self._epoch = 0  # counted as the Trainer's logs do
        self._batch: int | None = None  # of this epoch, the next; None in one that was resumed

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach to the model as the trainer wrapped it, and to the optimizer."""
        with self._training.faults.noting("trainer"):
            model, optimizer = kwargs["model"], kwargs["optimizer"]
            if self._trainer is None:
                why = "the loss is not seen; use trainer.add_callback(GradwatchCallback(trainer))"
                self._training.faults.note("trainer", why)
            else:
                model = self._trainer.model_wrapped
                self._watch_training_step(self._trainer)
            self._training.start(
                model,
                optimizer,
                run=args.run_name or Path(args.output_dir or "").name,
                first_step=state.global_step + 1,
                # The Trainer of transformers 5 keeps the status of a Kubeflow job itself.
                total_steps=0 if hasattr(integrations, "KubeflowCallback") else state.max_steps,
                scaler=getattr(optimizer, "scaler", None) or NO_SCALER,
            )
        self._batch = None if state.global_step else 0

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the batches of the next epoch from 0."""
        self._epoch, self._batch = round(state.epoch or 0.0), 0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._loss = None

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give the step its loss and its number."""
        with self._training.faults.noting("trainer"):
            self._training.annotate(loss=self._loss, step=state.global_step + 1)
        self._training.skip_if_bad(kwargs["optimizer"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the watch."""
        self._training.end()
        self._leave_training_step()

    def _watch_training_step(self, trainer: Trainer) -> None:
        """See what `training_step` returns, and what it raises: no callback is told."""
        self._leave_training_step()
        inner = trainer.training_step

        @wraps(inner)
        def training_step(*args: Any, **kwargs: Any) -> Tensor:
            if self._batch is not None:
                with self._training.faults.noting("trainer"):
                    self._training.annotate(batch=f"{self._batch} of epoch {self._epoch}")
                self._batch += 1
            try:
                loss = inner(*args, **kwargs)
            except BaseException as error:
                self._training.end(error)
                raise
            with self._training.faults.noting("trainer"):
                self._loss = loss if self._loss is None else self._loss + loss
            return loss

        self._own_step = vars(trainer).get("training_step")
        trainer.training_step = training_step  # type: ignore[method-assign]

    def _leave_training_step(self) -> None:
        if self._trainer is None:
            return
        if self._own_step is not None:
            self._trainer.training_step = self._own_step  # type: ignore[method-assign]
        else:
            vars(self._trainer).pop("training_step", None)
