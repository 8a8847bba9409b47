"""Common part of the callbacks: a watch that begins and ends with training.

A framework calls a callback in the middle of its loop, so nothing here raises: what went wrong is
logged once, and training goes on without a watch.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

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

    Attributes:
        watch: The watch while training is under way, else None.
        faults: Where errors are noted instead of being raised.

    Raises:
        TypeError: If `attach` has no such argument.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        inspect.signature(attach).bind(None, None, **settings)
        self.watch: Watch | NullWatch | None = None
        self.faults = Faults()
        self._settings = dict(settings)

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
