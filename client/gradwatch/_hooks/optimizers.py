"""The optimizers' steps, whoever takes them: told to the recorder, before and after."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradwatch._faults import Faults
from gradwatch._hooks.scaler import GradScalerHook
from gradwatch._recording.config import WatchConfig
from gradwatch._recording.recorder import Recorder


class OptimizerHooks:
    """Hooks on the optimizers, and around a scaler's step, until `close`.

    Args:
        config: Has the optimizers, in the order of their numbers, and the scaler that steps them.
        recorder: Is told.
        faults: Where errors end.
    """

    def __init__(self, config: WatchConfig, recorder: Recorder, faults: Faults) -> None:
        self._recorder = recorder
        self._faults = faults
        self._active = True
        self._in_scaler = False
        self._numbers = {id(optimizer): n for n, optimizer in enumerate(config.optimizers)}
        self._scaler_hook = None
        if config.scaler is not None and config.optimizers:
            around = (self._before_scaler, self._after_scaler)
            self._scaler_hook = GradScalerHook(config.scaler, *around)
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._before_step) for optimizer in config.optimizers
        ]

    def disable(self) -> None:
        """Do nothing from here on, without touching what this process shares with another."""
        self._active = False

    def close(self) -> None:
        """Remove the hooks."""
        self._active = False
        for handle in self._handles:
            handle.remove()
        if self._scaler_hook is not None:
            self._scaler_hook.close()

    def _before_step(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        # Inside the scaler the gradients were collected before it looked at them.
        if self._active and not self._in_scaler:
            number = self._numbers[id(optimizer)]
            self._recorder.before_optimizer(number)
            self._recorder.after_optimizer(number)

    def _before_scaler(self, optimizer: Optimizer) -> None:
        number = self._numbers.get(id(optimizer))
        if self._active and number is not None:
            self._recorder.before_optimizer(number)
            self._in_scaler = True

    def _after_scaler(self, optimizer: Optimizer) -> None:
        """Run after the scaler let the optimizer step, or skipped it."""
        self._in_scaler = False
        number = self._numbers.get(id(optimizer))
        if not self._active or number is None:
            return
        self._report_skip(number, optimizer)
        self._recorder.after_optimizer(number)

    def _report_skip(self, number: int, optimizer: Optimizer) -> None:
        if self._scaler_hook is None:
            return
        try:
            skip = self._scaler_hook.find_skip(self._recorder.step, number, optimizer)
            if skip is not None:
                self._recorder.put(skip)
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("scaler", repr(error))
