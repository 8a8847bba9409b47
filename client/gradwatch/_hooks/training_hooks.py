"""The hooks by which a watch follows the training loop: backward passes and optimizer steps."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from gradwatch._faults import Faults
from gradwatch._hooks.backward import BackwardPasses
from gradwatch._hooks.optimizer_steps import OptimizerSteps
from gradwatch._recording.config import WatchConfig
from gradwatch._recording.recorder import Recorder
from gradwatch._recording.schedule import Schedule

COMPILED_AUTOGRAD: Final = (
    "torch._dynamo.config.compiled_autograd is set, and hooks on parameters would break its "
    "graphs; gradients are measured by collect(), or when the optimizer steps, after clipping"
)


class TrainingHooks:
    """Tells a recorder's windows of each backward pass and each step, until `close`."""

    def __init__(
        self, config: WatchConfig, recorder: Recorder, schedule: Schedule, faults: Faults
    ) -> None:
        windows = recorder.windows
        with ExitStack() as undo:  # what raises here leaves nothing behind
            self._passes = BackwardPasses(windows.end_pass, schedule, faults)
            undo.callback(self._passes.close)
            self._optimizers = config.optimizers
            self._sees_passes = not config.is_autograd_compiled
            for number in range(len(config.optimizers)):
                self.watch(number)
            if config.optimizers and config.is_autograd_compiled:
                faults.note("backward passes are not seen", COMPILED_AUTOGRAD)
            self._steps = OptimizerSteps(
                config.optimizers, recorder, schedule, self._passes, faults, config.identities
            )
            undo.pop_all()

    def watch(self, optimizer: int) -> None:
        """Hook some of an optimizer's parameters, in place of hooked ones that are gone."""
        if not self._sees_passes:
            return
        groups = self._optimizers[optimizer].param_groups
        self._passes.watch(optimizer, [p for group in groups for p in group["params"]])

    def disable(self) -> None:
        """Do nothing from here on, without touching what this process shares with another."""
        self._passes.disable()
        self._steps.disable()

    def close(self) -> None:
        self._passes.close()
        self._steps.close()
