"""The watch: what runs in the training loop. It enqueues device work and returns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, TypeVar

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradwatch import _lifecycle
from gradwatch._collection import Collection, measure
from gradwatch._faults import Faults
from gradwatch._layers import Layer
from gradwatch._manifests import Manifests
from gradwatch._order import ForwardOrder
from gradwatch._probe import LocalProbe
from gradwatch._sender import Sender
from gradwatch._steps import Steps
from gradwatch_wire.limits import MAX_STEP
from gradwatch_wire.records import Label

BEFORE_CLIP: Final = "collect"
BEFORE_STEP: Final = "optimizer_step"

LAST_STEP: Final = MAX_STEP // 2
"""What may be given: far from where counting on would leave the wire's range."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """What `attach` found out and the watch works by."""

    layers: Sequence[Layer]
    groups: Mapping[str, frozenset[int]]
    optimizers: Sequence[Optimizer]
    scaler: GradScaler | None
    every: int
    reduction: str
    compiled: bool
    probed: bool


class Watch:
    """Made by `gradwatch.attach`. A context manager; also closed at exit."""

    def __init__(self, plan: Plan, sender: Sender, faults: Faults) -> None:
        self._plan = plan
        self._sender = sender
        self._faults = faults
        self._pid = os.getpid()
        self._active = True
        self._closed = False
        self._num_collected = 0
        self._collected_at: float | None = None
        self._steps = Steps(len(plan.optimizers))
        self._manifests = Manifests(plan.layers, plan.groups)
        self._order = ForwardOrder(plan.layers, compiled=plan.compiled)
        self._forward: list[int] = []
        self._seen: frozenset[int] = frozenset()
        self._settled: set[int | None] = set()
        self._probe = LocalProbe(plan.layers) if plan.probed else None
        self._of_optimizer = [_members(o, plan.layers) for o in plan.optimizers]
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._make_hook(number))
            for number, optimizer in enumerate(plan.optimizers)
        ]
        _lifecycle.close_at_exit(self)

    def collect(
        self,
        *,
        loss: Tensor | float | None = None,
        step: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        """Collect here, after backward and before clipping, instead of at the optimizer's step.

        Call it once per optimizer step. A wrong argument is logged once and left out.

        Args:
            loss: This rank's own loss, a number or a one-element tensor on any device. A NaN in it
                names the rank that a NaN gradient came from.
            step: Number of this step, if it is not the count from 0.
            batch_size: Samples in the batch of this rank, recorded as the weight of its loss.
        """
        if not self._active:
            return
        try:
            number = self._steps.on_collect(self._valid(_checked_step, step))
            if self._is_due(number):
                scalars: dict[str, Tensor | float | None] = {
                    "loss": self._valid(_checked_loss, loss),
                    "batch_size": self._valid(_checked_size, batch_size),
                }
                self._collect(number, BEFORE_CLIP, None, scalars=scalars)
            # The next backward pass is that of the next step.
            self._arm_probe(number + 1)
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("collect", repr(error))

    def close(self) -> None:
        """Remove the hooks, send what is left and say goodbye, in 2.5 s whatever the peer does.

        Records that are not acknowledged by then are lost.
        """
        self._end("exception" if _lifecycle.is_failing() else "closed")

    def stats(self) -> dict[str, int | str]:
        """Return counters of this watch.

        They are steps `collected`; records `sent`, `acked`, `evicted` before they were
        acknowledged, `pending`; `faults` and the `last_error`.
        """
        counters = self._sender.protocol.counters
        return {
            "collected": self._num_collected,
            "sent": counters["sent"],
            "acked": counters["acked"],
            "evicted": counters["evicted"],
            "pending": self._sender.protocol.pending + len(self._sender.waiting),
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
        if self._probe is not None:
            self._probe.active = False

    def _end(self, reason: str) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._active = False
        for handle in self._handles:
            handle.remove()
        self._order.close()
        if self._probe is not None:
            self._probe.close()
        _lifecycle.forget(self)
        self._sender.close(reason)

    def _make_hook(self, number: int) -> Any:
        def before_step(_optimizer: Optimizer, _args: object, _kwargs: object) -> None:
            if not self._active:
                return
            try:
                due = self._steps.before_optimizer(number)
                if due is not None and self._is_due(due[0]):
                    self._collect(due[0], BEFORE_STEP, number, part=due[1])
            except Exception as error:  # noqa: BLE001 - nothing may be raised into training
                self._faults.note("optimizer step", repr(error))
            self._steps.after_optimizer(number)
            self._arm_probe(self._steps.step)

        return before_step

    def _is_due(self, step: int) -> bool:
        return step % self._plan.every == 0

    def _arm_probe(self, step: int) -> None:
        """Let the next backward pass be probed if the step it belongs to is due."""
        if self._probe is not None:
            self._probe.active = self._is_due(step)

    def _valid(self, check: Callable[[Any], T], given: object) -> T | None:
        """Return what *check* makes of an argument; a wrong one must not cost the gradients."""
        try:
            return check(given)
        except Exception as error:  # noqa: BLE001 - the user's argument
            self._faults.note("collect", repr(error))
            return None

    @torch.no_grad()
    def _collect(
        self,
        step: int,
        point: str,
        optimizer: int | None,
        *,
        part: int = 0,
        scalars: Mapping[str, Tensor | float | None] = MappingProxyType({}),
    ) -> None:
        plan = self._plan
        indices, gradients = self._gradients(optimizer)
        if not gradients:
            self._faults.note("no gradients", f"at step {step} no watched parameter had one")
            return
        manifest_id, manifest = self._manifests.find(indices, self._seen)
        numbers, tensors = _sorted_out(scalars)
        if self._probe is not None and (sums := self._probe.take()):
            tensors["local_probe"] = sums
        numbers |= self._learning_rate(optimizer)
        if part == 0:
            numbers |= self._step_time()
        labels: dict[str, Label] = {"point": point, "reduction": plan.reduction, "scaled": False}
        divisor = self._loss_scale(optimizer, tensors)
        measured, nonfinite, labels["path"] = measure(gradients, tensors, divisor)
        self._num_collected += part == 0
        self._sender.put(
            Collection(
                step=step,
                time_ns=time.time_ns(),
                manifest_id=manifest_id,
                manifest=manifest,
                num_layers=len(gradients),
                measured=measured,
                labels=labels,
                scalars=numbers,
                nonfinite=nonfinite,
                part=part,
                parts=1 if optimizer is None else len(plan.optimizers),
            )
        )

    def _gradients(self, optimizer: int | None) -> tuple[tuple[int, ...], list[Tensor]]:
        """Return the layers that have a gradient, in forward order, and those gradients."""
        layers = self._plan.layers
        if optimizer not in self._settled:
            self._settle(optimizer)
        mine = None if optimizer is None else self._of_optimizer[optimizer]
        indices: list[int] = []
        gradients: list[Tensor] = []
        for index in self._forward:
            gradient = layers[index].parameter.grad
            if gradient is not None and (mine is None or index in mine):
                indices.append(index)
                gradients.append(gradient)
        return tuple(indices), gradients

    def _settle(self, optimizer: int | None) -> None:
        """Order the layers anew when an optimizer that may have its own backward pass is new."""
        self._settled.add(optimizer)
        self._forward, self._seen = self._order.settle()
        if optimizer is None or len(self._settled) == len(self._plan.optimizers):
            self._order.close()

    def _learning_rate(self, optimizer: int | None) -> dict[str, float]:
        if not self._plan.optimizers:
            return {}
        rate = self._plan.optimizers[optimizer or 0].param_groups[0].get("lr")
        # A tensor (capturable optimizers) would have to be synchronised for.
        return {"lr": float(rate)} if isinstance(rate, (int, float)) else {}

    def _step_time(self) -> dict[str, float]:
        now, before = time.perf_counter(), self._collected_at
        self._collected_at = now
        return {} if before is None else {"step_time_s": (now - before) / self._plan.every}

    def _loss_scale(self, optimizer: int | None, tensors: dict[str, list[Tensor]]) -> Tensor | None:
        """Record the loss scale; return it if the gradients still carry it."""
        scaler = self._plan.scaler
        scale = None if scaler is None else scaler._scale
        if scaler is None or scale is None:
            return None
        tensors["loss_scale"] = [scale]
        states = scaler._per_optimizer_states
        if self._plan.optimizers:
            stepping = id(self._plan.optimizers[optimizer or 0])
            states = {key: state for key, state in states.items() if key == stepping}
        unscaled = any(state["stage"].name != "READY" for state in states.values())
        return None if unscaled else scale


def _members(optimizer: Optimizer, layers: Sequence[Layer]) -> frozenset[int]:
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return frozenset(i for i, layer in enumerate(layers) if id(layer.parameter) in own)


def _checked_step(step: int | None) -> int | None:
    if step is not None and (type(step) is not int or not 0 <= step <= LAST_STEP):
        msg = f"step: an integer from 0 to {LAST_STEP}, got {step!r}"
        raise ValueError(msg)
    return step


def _checked_loss(loss: Tensor | float | None) -> Tensor | float | None:
    if isinstance(loss, Tensor):
        if loss.numel() != 1 or loss.is_complex():
            msg = f"loss: a number or a one-element tensor, got shape {tuple(loss.shape)}"
            raise ValueError(msg)
        return loss.detach().reshape(())
    return None if loss is None else float(loss)


def _checked_size(batch_size: int | None) -> float | None:
    # A tensor would have to be synchronised for.
    if batch_size is not None and not isinstance(batch_size, (int, float)):
        msg = f"batch_size: a number, got {type(batch_size).__name__}"
        raise TypeError(msg)
    return None if batch_size is None else float(batch_size)


def _sorted_out(
    scalars: Mapping[str, Tensor | float | None],
) -> tuple[dict[str, float], dict[str, list[Tensor]]]:
    """Return host numbers and device tensors apart."""
    numbers: dict[str, float] = {}
    tensors: dict[str, list[Tensor]] = {}
    for name, value in scalars.items():
        if isinstance(value, Tensor):
            tensors[name] = [value]
        elif value is not None:
            numbers[name] = value
    return numbers, tensors
