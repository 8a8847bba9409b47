"""From "now" to a sample: which layers have a gradient, their statistics, and what those are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from gradwatch._faults import Faults
from gradwatch._layers.manifests import Manifests
from gradwatch._layers.shards import is_partial
from gradwatch._recording.config import WatchConfig
from gradwatch._recording.loss_scale import LossScale
from gradwatch._recording.observer import LayerOrder
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.gradients import dense, is_distributed
from gradwatch_wire import Manifest
from gradwatch_wire.columns import INFS, L2, MEASURED_COLUMNS, NANS
from gradwatch_wire.names import Label, Point, Scalar

FREE_COLUMNS: Final = (L2, NANS, INFS)
"""What costs nothing besides the norm: NaN and Inf are counted where the norm shows some."""


class GradientSampler:
    """Reads the gradients as they are. Runs in the training thread and only enqueues.

    Args:
        config: What is watched.
        order: Says in which order the layers are listed.
        faults: Where it tells what could not be measured, or not by the best path.
    """

    def __init__(self, config: WatchConfig, order: LayerOrder, faults: Faults) -> None:
        self._config = config
        self.order = order
        self._faults = faults
        self._members: list[frozenset[int]] = []
        self._trained: list[int] = []  # identities of all parameters of the optimizers
        self._find_members()
        self.loss_scale = LossScale(
            config.scaler, config.optimizers, is_given=config.is_scaler_given
        )
        self._manifests = Manifests(config.layers, config.groups)
        self._undeclared: list[Manifest] = []
        self._has_cuda = any(layer.parameter.is_cuda for layer in config.layers)
        self._columns = config.columns or (MEASURED_COLUMNS if self._has_cuda else FREE_COLUMNS)

    def sample(self, step: int, point: Point, optimizer: int | None) -> StepSample | None:
        """Enqueue the statistics of all gradients; None, and a fault, if there are none to read.

        Args:
            step: Training step they belong to.
            point: Where in the training loop this is.
            optimizer: Number of the one whose parameters are meant, None for all layers.
        """
        if self._has_cuda and torch.cuda.is_current_stream_capturing():
            self._faults.note("capture", "collecting inside a CUDA graph capture; do it around it")
            return None
        found = self._gradients(optimizer)
        if not found:
            if point != Point.BACKWARD:  # where the optimizer steps within the pass there is none
                self._faults.note("no gradients", f"at step {step} no watched parameter had one")
            return None
        layers, ordered = self.order.arrange(tuple(found))
        gradients = [found[layer] for layer in layers]
        sample = StepSample(
            step=step,
            manifest_id=self._find_manifest(layers, gradients, ordered=ordered),
            layers=layers,
            parts=1 if optimizer is None else len(self._config.optimizers),
            is_complete=optimizer is None,
            versions=_versions(gradients),
            labels={
                Label.POINT: point,
                Label.REDUCTION: self._config.reduction,
                Label.SCALED: False if self.loss_scale.is_known(optimizer) else None,
            },
        )
        self._measure(sample, optimizer, gradients)
        self._add_scalars(sample, optimizer)
        return sample

    def refresh(self) -> list[int] | None:
        """Take in what the training script has changed since: layers and parameter groups.

        Returns:
            Indices of layers with another parameter than before; None if nothing has changed.
        """
        changed = self._config.tracker.refresh()
        if not changed and self._trained == self._find_trained():
            return None
        self._find_members()
        if changed:
            self._manifests.forget()
            self.order.forget()
        self._tell_untrained(changed)
        return changed

    def _find_trained(self) -> list[int]:
        groups = [group for each in self._config.optimizers for group in each.param_groups]
        return [identity for group in groups for identity in map(id, group["params"])]

    def _find_members(self) -> None:
        self._trained = self._find_trained()
        self._members = [self._config.members(each) for each in self._config.optimizers]

    def _tell_untrained(self, changed: Sequence[int]) -> None:
        trained = frozenset[int]().union(*self._members) if self._members else set(changed)
        names = [self._config.layers[i].name for i in changed if i not in trained]
        if names:
            why = f"{names[0]} and {len(names) - 1} more are new and in no optimizer that was given"
            self._faults.note("not watched", why)

    def is_changed(self, sample: StepSample) -> bool:
        """Tell whether any of the gradients was written to or replaced since they were sampled."""
        layers = self._config.layers
        return sample.versions != _versions([layers[i].parameter.grad for i in sample.layers])

    def take_manifests(self) -> list[Manifest]:
        """Return the manifests that no record has taken along yet.

        Whichever record goes first takes all: it comes before any that refers to them.
        """
        undeclared, self._undeclared = self._undeclared, []
        return undeclared

    def close(self) -> None:
        """Stop watching the order of the layers."""
        self.order.close()

    def _find_manifest(
        self, layers: tuple[int, ...], gradients: Sequence[Tensor], *, ordered: bool
    ) -> int:
        manifest_id, manifest = self._manifests.find(layers, gradients, ordered=ordered)
        if manifest is not None:
            self._undeclared.append(manifest)
        return manifest_id

    def _measure(
        self, sample: StepSample, optimizer: int | None, gradients: Sequence[Tensor]
    ) -> None:
        divisor = self.loss_scale.divisor(optimizer)
        declined = sample.measure([dense(g) for g in gradients], self._columns, divisor)
        if declined:
            path = sample.labels[Label.PATH]
            self._faults.note("statistics", f"by a slower path, {path}; {declined}")
            if self._config.columns is None:
                self._columns = (L2,)

    def _add_scalars(self, sample: StepSample, optimizer: int | None) -> None:
        sample.add_scalar(Scalar.LOSS_SCALE, self.loss_scale.value_of(optimizer))
        self.add_rate(sample, optimizer)

    def add_rate(self, sample: StepSample, optimizer: int | None) -> None:
        """Add the learning rate as it is now, of an optimizer or of the first."""
        if self._config.optimizers:
            rate = self._config.optimizers[optimizer or 0].param_groups[0].get("lr")
            # A tensor (capturable optimizers) would have to be synchronised for.
            if isinstance(rate, (int, float)):
                sample.add_scalar(Scalar.LR, float(rate))

    def _gradients(self, optimizer: int | None) -> dict[int, Tensor]:
        """Return the layers that have a gradient, in the order of registration, and those."""
        layers = self._config.layers
        mine = None if optimizer is None else self._members[optimizer]
        found: dict[int, Tensor] = {}
        for index, layer in enumerate(layers):
            gradient = layer.parameter.grad
            if gradient is None or (mine is not None and index not in mine):
                continue
            if is_distributed(gradient) and is_partial(gradient):
                self._faults.note("partial", f"{layer.name} is left out: not reduced yet")
                continue
            found[index] = gradient
        return found


def _versions(gradients: Sequence[Tensor | None]) -> list[tuple[int, int]]:
    """Return for each gradient what changes when it is replaced or written to."""
    return [(0, 0) if each is None else (id(each), each._version) for each in gradients]
