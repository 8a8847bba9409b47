"""Common part of the callbacks: a watch that begins and ends with training.

A framework calls a callback in the middle of its loop, so nothing here raises: what went wrong is
logged once, and training goes on without a watch.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gradwatch._faults import Faults
from gradwatch._watch.attach import attach
from gradwatch._watch.identity import as_run_name
from gradwatch._watch.null import NullWatch
from gradwatch._watch.watch import Watch

NO_SCALER: Final = GradScaler("cpu", enabled=False)
"""Tells `attach` that there is none, where the framework is certain, so that it looks for none."""


class TrainingWatch:
    """One watch after another, from `start` to `end` of each training.

    Args:
        settings: Keyword arguments of `gradwatch.attach`; they win over what the framework says.
        skip_bad_steps: Whether a step whose gradients are NaN or Inf on any rank changes nothing.
            Then each step is measured in full, unless the settings say otherwise.

    Attributes:
        watch: The watch while training is under way, else None.
        faults: Where errors are noted instead of being raised.

    Raises:
        TypeError: If `attach` has no such argument.
    """

    def __init__(self, settings: Mapping[str, Any], *, skip_bad_steps: bool = False) -> None:
        inspect.signature(attach).bind(None, None, **settings)
        self.watch: Watch | NullWatch | None = None
        self.faults = Faults()
        self._settings = ({"every": 1} if skip_bad_steps else {}) | dict(settings)
        self._skips = skip_bad_steps
        self._has_scaler = False

    def start(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer] | Optimizer,
        *,
        run: str,
        **found: Any,
    ) -> None:
        """Attach to what the framework trains.

        Args:
            model: The model as the framework wrapped it.
            optimizers: As the framework wrapped them.
            run: What the framework calls the run, in any characters; empty if it has no name.
            found: Further arguments of `attach`.
        """
        self.end()
        if run and not os.environ.get("GRADWATCH_RUN"):
            found["run"] = as_run_name(run) or None
        scaler = found.get("scaler")
        self._has_scaler = scaler is not None and scaler.is_enabled()
        with self.faults.noting("attach"):
            self.watch = attach(model, optimizers, **(found | self._settings))

    def annotate(
        self,
        *,
        loss: Tensor | float | None = None,
        step: int | None = None,
        batch: str | None = None,
    ) -> None:
        """Give what is known of the step under way."""
        if self.watch is not None:
            self.watch.annotate(loss=loss, step=step, batch=batch)

    def skip_if_bad(self, optimizer: Optimizer) -> None:
        """Drop the gradients of a step that is bad on any rank, if that is wanted.

        All ranks have to call it in each step: they agree by a reduction. With a GradScaler it does
        nothing, as that skips such steps itself.
        """
        if not self._skips or self._has_scaler:
            return
        is_bad = False
        with self.faults.noting("skip"):
            is_bad = self.watch is not None and self.watch.is_bad(wait=True) is True
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if not _is_any(is_bad, parameters[0].device):
            return
        for parameter in parameters:
            parameter.grad = None
        if self.watch is not None:
            self.watch.drop_step()

    def end(self, error: BaseException | None = None) -> None:
        """Close the watch, if there is one.

        Args:
            error: What ended the training, None if it came to its end.
        """
        watch, self.watch = self.watch, None
        if watch is not None:
            with self.faults.noting("close"):
                watch.__exit__(None if error is None else type(error), error, None)

    @property
    def is_named(self) -> bool:
        """Choice: true if the settings name the run."""
        return self._settings.get("run") is not None


def _is_any(own: bool, device: torch.device) -> bool:
    """Tell whether it is true on any rank."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return own
    flag = torch.tensor([float(own)], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())
