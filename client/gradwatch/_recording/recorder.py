"""From "now" to a record on its way: gradients, statistics, labels and numbers of one moment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from gradwatch._faults import Faults
from gradwatch._hooks.blocks import Blocks
from gradwatch._hooks.local import LocalNorms
from gradwatch._hooks.order import ForwardOrder
from gradwatch._hooks.probe import LocalProbe
from gradwatch._hooks.scaler import is_scaled
from gradwatch._layers.manifests import Manifests
from gradwatch._recording.collection import Collection, Sample, sample, send_off
from gradwatch._recording.config import WatchConfig
from gradwatch._recording.running import Running, StepSample
from gradwatch._statistics.gradients import dense, is_distributed
from gradwatch._statistics.statistics import COLUMNS
from gradwatch._transport.sender import Sender
from gradwatch._watch.arguments import sorted_out
from gradwatch_wire import Manifest

FREE_COLUMNS: Final = ("l2", "nans", "infs")
"""What costs nothing besides the norm: NaN and Inf are counted where the norm shows some."""


class Recorder:
    """Collects for one watch. Everything here runs in the training thread and only enqueues."""

    def __init__(self, plan: WatchConfig, sender: Sender, faults: Faults) -> None:
        self.num_collected = 0
        self._plan = plan
        self._sender = sender
        self._faults = faults
        self._of_optimizer = [plan.members(optimizer) for optimizer in plan.optimizers]
        self._manifests = Manifests(plan.layers, plan.groups)
        self._order = ForwardOrder(plan.modules, plan.layers, faults)
        self._probe = LocalProbe(plan.layers) if plan.distributed and not plan.local else None
        self._local = LocalNorms(plan.layers, faults) if plan.local else None
        self._blocks = Blocks(plan.blocks, faults) if plan.blocks else None
        self._undeclared: list[Manifest] = []
        self._running: dict[int | None, Running] = {}
        self._last_sent: tuple[float, int] | None = None  # when, and which step
        self._has_cuda = any(layer.parameter.is_cuda for layer in plan.layers)
        self._columns = plan.columns or (COLUMNS if self._has_cuda else FREE_COLUMNS)

    @torch.no_grad()
    def collect(
        self,
        step: int,
        point: str,
        optimizer: int | None,
        *,
        part: int = 0,
        is_step: bool = True,
        scalars: Mapping[str, Tensor | float | None] = MappingProxyType({}),
    ) -> None:
        """Collect the gradients as they are.

        Args:
            step: Optimizer step they belong to.
            point: Where in the training loop this is.
            optimizer: The one whose parameters are meant, None for all layers.
            part: Which part of the step this is.
            is_step: Whether the step's gradients are complete; False for a micro-batch.
            scalars: Numbers of the whole step.
        """
        if self._has_cuda and torch.cuda.is_current_stream_capturing():
            self._faults.note("capture", "collecting inside a CUDA graph capture; do it around it")
            return
        indices, gradients, ordered = self._gradients(optimizer)
        if not gradients:
            self._faults.note("no gradients", f"at step {step} no watched parameter had one")
            return
        moment = self._measure(step, point, optimizer, indices, gradients, ordered=ordered)
        self._add_scalars(moment, optimizer, scalars)
        moment.part, moment.parts = part, 1 if optimizer is None else len(self._plan.optimizers)
        self._report(moment, optimizer, is_step=is_step)
        if is_step:
            self._order.end_step()
        if is_step and part == 0:
            self.num_collected += 1
            if self._blocks is not None:
                self._send_gains(step, self._blocks)

    def read_graph(self, loss: object) -> None:
        """Take the order of the layers from a loss that still has its graph, if it is not known."""
        self._order.read(loss)

    def arm(self, *, due: bool) -> None:
        """Let the next backward pass be measured before the reduction if it is to be collected."""
        for hooks in (self._probe, self._local):
            if hooks is not None:
                hooks.active = due

    def disable(self) -> None:
        """Do nothing from here on: this process is a fork of the one that trains."""
        self.arm(due=False)

    def close(self) -> None:
        """Send what has come together since the last report, and remove all hooks."""
        try:
            for key in list(self._running):
                self._send(self._running.pop(key).close())
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("close", repr(error))
        for hooks in (self._order, self._probe, self._local, self._blocks):
            if hooks is not None:
                hooks.close()

    def _measure(
        self,
        step: int,
        point: str,
        optimizer: int | None,
        indices: tuple[int, ...],
        gradients: Sequence[Tensor],
        *,
        ordered: bool,
    ) -> StepSample:
        manifest_id, manifest = self._manifests.find(indices, gradients, ordered=ordered)
        if manifest is not None:
            self._undeclared.append(manifest)
        own = [dense(gradient) for gradient in gradients]
        taken = sample(own, self._columns, self._divisor(optimizer, indices))
        if taken.declined:
            self._faults.note("statistics", f"by a slower path, {taken.path}; {taken.declined}")
            if self._plan.columns is None:
                self._columns = ("l2",)
        if self._local is not None:
            _add_local(taken, self._local.take(indices, [g.device for g in own]))
        return StepSample(
            step=step,
            manifest_id=manifest_id,
            num_layers=len(indices),
            taken=taken,
            labels={
                "point": point,
                "reduction": self._plan.reduction,
                "scaled": False,
                "path": taken.path,
            },
            numbers={},
            tensors={},
            part=0,
            parts=1,
        )

    def _add_scalars(
        self,
        moment: StepSample,
        optimizer: int | None,
        scalars: Mapping[str, Tensor | float | None],
    ) -> None:
        moment.numbers, moment.tensors = sorted_out(scalars)
        if self._probe is not None and (sums := self._probe.take()):
            moment.tensors["local_probe"] = sums
        if self._plan.scaler is not None and self._plan.scaler._scale is not None:
            moment.tensors["loss_scale"] = [self._plan.scaler._scale]
        if self._plan.optimizers:
            rate = self._plan.optimizers[optimizer or 0].param_groups[0].get("lr")
            # A tensor (capturable optimizers) would have to be synchronised for.
            if isinstance(rate, (int, float)):
                moment.numbers["lr"] = float(rate)

    def _report(self, moment: StepSample, optimizer: int | None, *, is_step: bool) -> None:
        """Send a record, or keep the moment for the one that is due later."""
        key = optimizer if len(self._plan.optimizers) > 1 else None
        if key is not None and self._running.pop(None, None) is not None:
            why = "with several optimizers the step has to be collected by collect(), too"
            self._faults.note("micro_batch", why)
        if self._plan.report_every == 1 and is_step and key not in self._running:
            self._send(moment)
            return
        running = self._running.get(key)
        if running is not None and running.latest.manifest_id != moment.manifest_id:
            self._send(running.close())
            running = None
        if running is None:
            running = self._running[key] = Running(moment)
        running.add(moment, is_step=is_step)
        if running.steps >= self._plan.report_every:
            self._send(self._running.pop(key).close())

    def _send(self, moment: StepSample) -> None:
        if moment.part == 0:
            moment.numbers |= self._step_time(moment.step)
        # Whichever record goes first takes them along: it comes before any that refers to them.
        undeclared, self._undeclared = self._undeclared, []
        self._sender.put(
            Collection(
                step=moment.step,
                time_ns=time.time_ns(),
                manifest_id=moment.manifest_id,
                num_layers=moment.num_layers,
                measured=send_off(moment.taken.values, moment.taken.places, moment.tensors),
                labels=moment.labels,
                scalars=moment.numbers,
                manifests=undeclared,
                part=moment.part,
                parts=moment.parts,
            )
        )

    def _send_gains(self, step: int, blocks: Blocks) -> None:
        # Gradients at the blocks' outputs carry the scale, whatever was unscaled since.
        scale = None if self._plan.scaler is None else self._plan.scaler._scale
        gains = blocks.take(step, scale)
        if gains is not None:
            self._sender.put(gains)

    def _gradients(self, optimizer: int | None) -> tuple[tuple[int, ...], list[Tensor], bool]:
        """Return the layers that have a gradient, those gradients, and if in forward order."""
        mine = None if optimizer is None else self._of_optimizer[optimizer]
        gradients: dict[int, Tensor] = {}
        for index, layer in enumerate(self._plan.layers):
            gradient = layer.parameter.grad
            if gradient is None or (mine is not None and index not in mine):
                continue
            if is_distributed(gradient) and _is_partial(gradient):
                self._faults.note("partial", f"{layer.name} is left out: not reduced yet")
                continue
            gradients[index] = gradient
        if not gradients:
            return (), [], False
        indices, ordered = self._order.arrange(tuple(gradients))
        return indices, [gradients[index] for index in indices], ordered

    def _divisor(self, optimizer: int | None, indices: Sequence[int]) -> Tensor | None:
        """Return the loss scale that the gradients still carry: 0-d, (layers,), or None."""
        scaler, optimizers = self._plan.scaler, self._plan.optimizers
        if scaler is None or scaler._scale is None:
            return None
        if optimizer is not None or len(optimizers) < 2:
            one = optimizers[optimizer or 0] if optimizers else None
            return scaler._scale if is_scaled(scaler, one) else None
        scaled = [is_scaled(scaler, each) for each in optimizers]
        if all(scaled) or not any(scaled):
            return scaler._scale if scaled[0] else None
        free = frozenset().union(
            *(own for own, still in zip(self._of_optimizer, scaled, strict=True) if not still)
        )
        mask = torch.tensor([index in free for index in indices])
        return torch.where(mask.to(scaler._scale.device), 1.0, scaler._scale)

    def _step_time(self, step: int) -> dict[str, float]:
        now, before = time.perf_counter(), self._last_sent
        self._last_sent = (now, step)
        if before is None or step <= before[1]:
            return {}
        return {"step_time_s": (now - before[0]) / (step - before[1])}


def _add_local(taken: Sample, norms: Sequence[Tensor]) -> None:
    for device, places in taken.places.items():
        taken.values[device]["local_l2"] = torch.cat([norms[place] for place in places])


def _is_partial(gradient: Tensor) -> bool:
    """Tell whether a DTensor still waits for a reduction over ranks: its norm is then unknown."""
    return any(p.is_partial() for p in gradient.placements)  # type: ignore[attr-defined]  # DTensor
