"""The hooks by which a watch follows the training loop: backward passes and optimizer steps."""

from __future__ import annotations

from contextlib import ExitStack

from gradwatch._faults import Faults
from gradwatch._hooks.backward import BackwardPasses
from gradwatch._hooks.optimizer_steps import OptimizerSteps
from gradwatch._recording.config import WatchConfig
from gradwatch._recording.windows import StepWindows


class TrainingHooks:
    """Tells *windows* of each backward pass and each step, until `close`.

    Args:
        config: Has the optimizers, in the order of their numbers.
        windows: Is told; held weakly by the hooks.
        faults: Where errors end.
    """

    def __init__(self, config: WatchConfig, windows: StepWindows, faults: Faults) -> None:
        with ExitStack() as undo:  # what raises here leaves nothing behind
            self._passes = BackwardPasses(windows.end_pass, faults)
            undo.callback(self._passes.close)
            self._optimizers = config.optimizers
            for number in range(len(config.optimizers)):
                self.watch(number)
            self._steps = OptimizerSteps(config.optimizers, windows, faults)
            undo.pop_all()

    def watch(self, optimizer: int) -> None:
        """Hook some of an optimizer's parameters, in place of hooked ones that are gone."""
        groups = self._optimizers[optimizer].param_groups
        self._passes.watch(optimizer, [p for group in groups for p in group["params"]])

    def disable(self) -> None:
        """Do nothing from here on, without touching what this process shares with another."""
        self._passes.disable()
        self._steps.disable()

    def close(self) -> None:
        """Remove the hooks."""
        self._passes.close()
        self._steps.close()
