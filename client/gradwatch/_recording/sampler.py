"""From "now" to a sample: which layers have a gradient, their statistics, and what those are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from gradwatch._faults import Faults
from gradwatch._layers.manifests import Manifests
from gradwatch._recording.config import WatchConfig
from gradwatch._recording.gradient_reader import GradientReader, ReadGradients
from gradwatch._recording.loss_scale import LossScale
from gradwatch._recording.observer import OrderReader
from gradwatch._recording.step_history import learning_rate
from gradwatch._recording.step_sample import StepSample, Versions
from gradwatch._statistics.cuda import warm_up
from gradwatch._statistics.rows import FREE_COLUMNS
from gradwatch._statistics.sentinel import Sentinel
from gradwatch_wire import Manifest
from gradwatch_wire.columns import L2, MEASURED_COLUMNS
from gradwatch_wire.names import Label, Point, Scalar

_CHANGED: Final = (
    "gradients were changed between the end of the backward pass and collect(), which measured "
    "them anew: these norms may be after clipping; call collect() before it, or not at all"
)


class GradientSampler:
    """Reads the gradients as they are. Runs in the training thread and only enqueues.

    Args:
        faults: Where it tells what could not be measured, or not by the best path.
    """

    def __init__(self, config: WatchConfig, order: OrderReader, faults: Faults) -> None:
        self._config = config
        self.order = order
        self._faults = faults
        self.sentinel = Sentinel(self._parameters_of)
        self._members: list[frozenset[int]] = []
        self._trained: list[int] = []  # identities of all parameters of the optimizers
        self._find_members()
        self.loss_scale = LossScale(
            config.scaler, config.optimizers, is_given=config.is_scaler_given
        )
        self._manifests = Manifests(
            *(config.layers, config.groups, config.num_pieces, config.module_names),
            config.optimizers,
            config.parallel,
        )
        self._undeclared: list[Manifest] = []
        self._reader = GradientReader(config, faults)
        self._is_slow = False  # whether a path had to take over for which not all columns are free
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile and load the kernels now: in the training loop all ranks would wait for it."""
        dtypes: dict[torch.device, set[torch.dtype]] = {}
        for layer in self._config.layers:
            if layer.parameter.is_cuda:
                dtypes.setdefault(layer.parameter.device, set()).add(layer.parameter.dtype)
        for device, dtype in dtypes.items():
            if why := warm_up(device, dtype):
                self._faults.note(
                    "statistics", f"by a slower path than on {device} possible; {why}"
                )
                self._is_slow = True

    def sample(
        self, step: int, point: Point, optimizer: int | None, *, as_computed: bool = True
    ) -> StepSample | None:
        """Enqueue the statistics of all gradients; None, and a fault, if there are none to read.

        Args:
            optimizer: Number of the one whose parameters are meant, None for all layers.
            as_computed: Whether the gradients are as a backward pass left them. Clipping spreads a
                NaN to all layers: their order then does not show where it began.
        """
        found = self._reader.read(None if optimizer is None else self._members[optimizer])
        if not found.given:
            if point != Point.BACKWARD:  # where the optimizer steps within the pass there is none
                self._faults.note("no gradients", f"at step {step} no watched parameter had one")
            return None
        make = partial(self._sample, step, point, optimizer, as_computed=as_computed)
        try:
            return make(found)
        except Exception:
            sound = self._reader.sound(found, self._config.columns or MEASURED_COLUMNS)
            if len(sound.given) in (0, len(found.given)):
                raise
            return make(sound)

    def _sample(
        self,
        step: int,
        point: Point,
        optimizer: int | None,
        found: ReadGradients,
        *,
        as_computed: bool,
    ) -> StepSample:
        layers, ordered = self.order.arrange(tuple(found.given))
        if not as_computed:
            layers, ordered = tuple(found.given), False
        gradients = [found.given[layer] for layer in layers]
        sample = StepSample(
            step=step,
            layers=layers,
            parts=1 if optimizer is None else len(self._config.optimizers),
            num_pieces=self._config.num_pieces,
            is_complete=optimizer is None,
            is_ordered=ordered,
            versions=_versions(gradients),
            labels={
                Label.POINT: point,
                Label.REDUCTION: self._config.reduction,
                Label.SCALED: False if self.loss_scale.is_known(optimizer) else None,
            },
        )
        self._measure(sample, found)
        sample.manifest_id = self._find_manifest(optimizer, layers, gradients, ordered=ordered)
        self._add_scalars(sample, optimizer)
        return sample

    @property
    def is_on_cpu(self) -> bool:
        """Place of the gradients: true if none was on an accelerator at the last refresh."""
        return self._is_on_cpu

    def members_of(self, optimizer: int) -> frozenset[int]:
        return self._members[optimizer]

    def _parameters_of(self, optimizer: int) -> list[nn.Parameter]:
        return [self._config.layers[layer].parameter for layer in sorted(self._members[optimizer])]

    def is_settled(self, optimizer: int) -> bool:
        """Tell whether it is known of an optimizer that its steps have no scaler, and the order."""
        scale = self.loss_scale
        return scale.is_known(optimizer) and scale.value is None and not self.order.is_looking

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
        self._is_on_cpu = all(layer.parameter.is_cpu for layer in self._config.layers)
        self._members = [self._config.members(each) for each in self._config.optimizers]
        self.sentinel.forget()

    def _tell_untrained(self, changed: Sequence[int]) -> None:
        trained = frozenset[int]().union(*self._members) if self._members else set(changed)
        names = [self._config.layers[i].name for i in changed if i not in trained]
        if names:
            why = f"{names[0]} and {len(names) - 1} more are new and in no optimizer that was given"
            self._faults.note("not watched", why)

    def is_changed(self, sample: StepSample) -> bool:
        """Tell whether any of the gradients may have been changed since they were sampled."""
        layers = self._config.layers
        if self._config.may_reduce:  # a collective leaves the version of a tensor as it was
            return True
        return sample.versions != _versions([layers[i].parameter.grad for i in sample.layers])

    def tell_changed(self) -> None:
        """Tell that gradients were changed and measured anew, if no reduction explains it."""
        if not self._config.may_reduce:
            self._faults.tell_once("after clipping", _CHANGED)

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
        self,
        optimizer: int | None,
        layers: tuple[int, ...],
        gradients: Sequence[Tensor],
        *,
        ordered: bool,
    ) -> int:
        members = None if optimizer is None else self._members[optimizer]
        manifest_id, manifests = self._manifests.find(
            layers, gradients, ordered=ordered, optimizer=optimizer, members=members
        )
        self._undeclared += manifests
        return manifest_id

    def _measure(self, sample: StepSample, found: ReadGradients) -> None:
        stored = [found.stored[layer] for layer in sample.layers]
        declined = sample.measure(stored, self._columns_on)
        for layer, count in found.unstored.items():
            sample.add_zeros(layer, count)
        if declined:
            path = sample.labels[Label.PATH]
            self._faults.note("statistics", f"by a slower path, {path}; {declined}")
        self._is_slow = bool(declined)

    def _columns_on(self, device: torch.device) -> Sequence[str]:
        if self._config.columns is not None:
            return self._config.columns
        if self._is_slow:
            return (L2,)
        # The model may have moved since the last sample.
        return MEASURED_COLUMNS if device.type == "cuda" else FREE_COLUMNS

    def _add_scalars(self, sample: StepSample, optimizer: int | None) -> None:
        scale = self.loss_scale.value_of(optimizer)
        sample.add_scalar(Scalar.LOSS_SCALE, scale)
        if scale is not None and self.loss_scale.is_scaled(optimizer):
            sample.mark_scaled()
        self.add_rate(sample, optimizer)

    def add_rate(self, sample: StepSample, optimizer: int | None) -> None:
        """Add the learning rate as it is now, of an optimizer or of the first."""
        if self._config.optimizers:
            rate = learning_rate(self._config.optimizers[optimizer or 0])
            sample.add_scalar(Scalar.LR, rate)


def _versions(gradients: Sequence[Tensor | None]) -> Versions:
    return list(map(id, gradients)), [0 if each is None else each._version for each in gradients]
