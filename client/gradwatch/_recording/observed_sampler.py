"""Samples of the gradients, with what the observers saw in the passes before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gradwatch._recording.config import WatchConfig
from gradwatch._recording.observer import Observer
from gradwatch._recording.sampler import GradientSampler
from gradwatch._recording.step_sample import StepSample
from gradwatch._recording.updates import WeightUpdates
from gradwatch_wire.names import Point


class ObservedSampler:
    """Takes samples from a model that may have changed since the last one.

    Attributes:
        hook_again: Returns what hooks the parameters of an optimizer that have changed, if any.
    """

    def __init__(
        self,
        config: WatchConfig,
        sampler: GradientSampler,
        observers: Sequence[Observer],
        updates: WeightUpdates,
    ) -> None:
        self.hook_again: Callable[[], Callable[[int], None] | None] = lambda: None
        self._config = config
        self._sampler = sampler
        self._observers = observers
        self._updates = updates
        self.has_observers = bool(observers)

    @torch.no_grad()
    def sample(self, optimizer: int | None, step: int, point: Point) -> StepSample | None:
        """Measure the gradients; None if there are none.

        Args:
            optimizer: Number of the one whose parameters are meant, None for all layers.
        """
        self.refresh()
        was_seen = point != Point.OPTIMIZER_STEP
        if optimizer is not None and not was_seen:
            self._hook_again(optimizer)  # those hooked may be frozen or replaced
        sample = self._sampler.sample(step, point, optimizer, as_computed=was_seen)
        if sample is not None:
            for observer in self._observers:
                observer.contribute(sample)
        return sample

    @torch.no_grad()
    def sample_again(self, optimizer: int, step: int) -> StepSample | None:
        """Measure gradients that were changed since their pass; None if there are none."""
        return self._sampler.sample(step, Point.COLLECT, optimizer, as_computed=False)

    def begin_step(self, optimizer: int, sample: StepSample) -> None:
        """Read what an optimizer is set to as it begins its step, and the weights of a sample."""
        self._sampler.add_rate(sample, optimizer)  # it may have been set since the pass
        self._updates.begin_step(optimizer, sample.step, sample.layers)

    def begin_closure(self, optimizer: int, step: int) -> None:
        """Read the weights as an optimizer begins a step in which it computes its gradients."""
        self._updates.begin_step(optimizer, step, sorted(self._sampler.members_of(optimizer)))

    def end_step(self, optimizer: int, sample: StepSample, *, taken: bool) -> None:
        if taken:
            self._updates.end_step(optimizer, sample)
        else:
            self._updates.forget(optimizer)

    def pass_over(self) -> None:
        """Let observers forget a pass that is not measured."""
        for observer in self._observers:
            observer.forget()

    def activate(self, *, due: bool, looked_at: bool) -> None:
        """Let observers measure the next backward pass, or not.

        Args:
            looked_at: Whether a sentinel looks at it, and may ask for a measurement.
        """
        for observer in self._observers:
            observer.active = due or (looked_at and observer.names_rank)

    def count(self, sample: StepSample) -> None:
        """Let observers do what is due once in each collected step."""
        for observer in self._observers:
            observer.after_step(sample)

    def close(self) -> None:
        self._sampler.close()
        for observer in self._observers:
            observer.close()

    def refresh(self) -> None:
        """Take in what the training script has changed since, and hook what is new."""
        changed = self._sampler.refresh()
        if changed is None:
            return
        for optimizer in range(len(self._config.optimizers)):
            self._hook_again(optimizer)
        for index in changed:
            for observer in self._observers:
                observer.follow(index, self._config.layers[index].parameter)

    def _hook_again(self, optimizer: int) -> None:
        hook = self.hook_again()
        if hook is not None:
            hook(optimizer)
