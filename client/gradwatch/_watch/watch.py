"""The watch: what runs in the training loop. It enqueues device work and returns."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradwatch._faults import Faults
from gradwatch._hooks.scaler import GradScalerHook, check_skip
from gradwatch._recording.config import WatchConfig
from gradwatch._recording.recorder import Recorder
from gradwatch._transport.sender import Sender
from gradwatch._watch import lifecycle
from gradwatch._watch.arguments import checked_loss, checked_size, checked_step
from gradwatch._watch.steps import Steps

BEFORE_CLIP: Final = "collect"
BEFORE_STEP: Final = "optimizer_step"

T = TypeVar("T")


class Watch:
    """Made by `gradwatch.attach`. A context manager; also closed at exit."""

    def __init__(self, plan: WatchConfig, sender: Sender, faults: Faults) -> None:
        self._plan = plan
        self._sender = sender
        self._faults = faults
        self._pid = os.getpid()
        self._active = True
        self._closed = False
        self._steps = Steps(len(plan.optimizers))
        self._recorder = Recorder(plan, sender, faults)
        self._numbers = {id(optimizer): n for n, optimizer in enumerate(plan.optimizers)}
        self._in_scaler = False
        self._tap = None
        if plan.scaler is not None and plan.optimizers:
            self._tap = GradScalerHook(plan.scaler, self._before_scaler, self._after_scaler)
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._before_step) for optimizer in plan.optimizers
        ]
        lifecycle.close_at_exit(self)

    def collect(
        self,
        *,
        loss: Tensor | float | None = None,
        step: int | None = None,
        batch_size: int | None = None,
        micro_batch: bool = False,
    ) -> None:
        """Collect here, after backward and before clipping, instead of at the optimizer's step.

        Call it once per optimizer step. A wrong argument is logged once and left out.

        Args:
            loss: This rank's own loss, a number or a one-element tensor on any device. A NaN in it
                names the rank that a NaN gradient came from.
            step: Number of this step, if it is not the count from 0.
            batch_size: Samples in the batch of this rank, by which its loss is weighted.
            micro_batch: With gradient accumulation: this is after one micro-batch, the step's
                gradients are not complete. The norms of what has accumulated so far go into the
                largest and the mean of the step's record (`l2_max`, `l2_mean`).
        """
        if not self._active:
            return
        try:
            given = self._valid(checked_step, step)
            steps = self._steps
            number = steps.on_micro_batch() if micro_batch else steps.on_collect(given)
            if self._is_due(number):
                self._recorder.read_graph(loss)
                scalars: dict[str, Tensor | float | None] = {
                    "loss": self._valid(checked_loss, loss),
                    "batch_size": self._valid(checked_size, batch_size),
                }
                self._recorder.collect(
                    number, BEFORE_CLIP, None, is_step=not micro_batch, scalars=scalars
                )
            # After a step's collection the next backward pass is that of the next step.
            self._arm(number + (not micro_batch))
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("collect", repr(error))

    def close(self) -> None:
        """Remove the hooks, send what is left and say goodbye, in 2.5 s whatever the peer does.

        Records that are not acknowledged by then are lost.
        """
        self._end("exception" if lifecycle.is_failing() else "closed")

    def stats(self) -> dict[str, int | str]:
        """Return counters of this watch.

        They are steps `collected`; collections `dropped` because the device or the sender did not
        keep up; records `oversize` for the aggregator, `sent`, `acked`, `evicted` from memory
        before they were acknowledged, `pending`; with spill files also records `spilled` to disk,
        `spill_dropped` from there before they were acknowledged, `replayed` from those of an
        earlier process; `faults` and the `last_error`. What is dropped, oversize, or evicted and
        not spilled, the aggregator counts as lost.
        """
        counters = self._sender.protocol.counters
        spill, leftovers = self._sender.spill, self._sender.leftovers
        return {
            "collected": self._recorder.num_collected,
            "dropped": self._sender.num_dropped,
            "oversize": counters["oversize"],
            "sent": counters["sent"],
            "acked": counters["acked"],
            "evicted": counters["evicted"],
            "pending": self._sender.protocol.pending + len(self._sender.waiting),
            "spilled": spill.num_written if spill else 0,
            "spill_dropped": spill.num_dropped if spill else 0,
            "replayed": leftovers.num_sent if leftovers else 0,
            "faults": self._faults.counts.total(),
            "last_error": self._faults.last,
        }

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, and say whether an exception ended the training."""
        left = kind is None or issubclass(kind, SystemExit)
        self._end("closed" if left else "exception")

    def disable(self) -> None:
        """Do nothing from here on: this process is a fork of the one that trains."""
        self._active = False
        self._closed = True
        self._recorder.disable()

    def _end(self, reason: str) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._active = False
        for handle in self._handles:
            handle.remove()
        if self._tap is not None:
            self._tap.close()
        self._recorder.close()
        lifecycle.forget(self)
        self._sender.close(reason)

    def _before_step(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        # Inside the scaler the gradients were collected before it looked at them.
        if self._active and not self._in_scaler:
            number = self._numbers[id(optimizer)]
            self._collect_part(number)
            self._finish_part(number)

    def _before_scaler(self, optimizer: Optimizer) -> None:
        number = self._numbers.get(id(optimizer))
        if self._active and number is not None:
            self._collect_part(number)
            self._in_scaler = True

    def _after_scaler(self, optimizer: Optimizer) -> None:
        """Run after the scaler let the optimizer step, or skipped it."""
        self._in_scaler = False
        number = self._numbers.get(id(optimizer))
        if not self._active or number is None or self._plan.scaler is None:
            return
        try:
            check = check_skip(self._plan.scaler, self._steps.step, number, optimizer)
            if check is not None:
                self._sender.put(check)
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("scaler", repr(error))
        self._finish_part(number)

    def _collect_part(self, number: int) -> None:
        """Collect what one optimizer is about to use, unless `collect` has."""
        try:
            due = self._steps.before_optimizer(number)
            if due is not None and self._is_due(due[0]):
                self._recorder.collect(due[0], BEFORE_STEP, number, part=due[1])
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("optimizer step", repr(error))

    def _finish_part(self, number: int) -> None:
        self._steps.after_optimizer(number)
        self._arm(self._steps.step)

    def _is_due(self, step: int) -> bool:
        return step % self._plan.every == 0

    def _arm(self, step: int) -> None:
        """Let the next backward pass be measured if the step it belongs to is due."""
        self._recorder.arm(due=self._is_due(step))

    def _valid(self, check: Callable[[Any], T], given: object) -> T | None:
        """Return what *check* makes of an argument; a wrong one must not cost the gradients."""
        try:
            return check(given)
        except Exception as error:  # noqa: BLE001 - the user's argument
            self._faults.note("collect", repr(error))
            return None
