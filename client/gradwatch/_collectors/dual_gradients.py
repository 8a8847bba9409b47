"""Two groups of parameters side by side: the host's, and those of the seed that grows in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from gradwatch._collectors.input import Gradients, check_device, gradients_of
from gradwatch._collectors.norms import home, measure
from gradwatch._statistics.devices import pack
from gradwatch_wire.columns import L2
from gradwatch_wire.health import normalized_ratio
from gradwatch_wire.norms import total_norm

Device = torch.device | str | int


class AsyncHostGradStats(TypedDict):
    """The host's numbers, still being computed."""

    _host_squared_sum: Tensor
    """0-d float64: sum of the squares of all elements; 0.0 without any gradient. Of float64
    gradients it may leave the range of float64 where their norm does not."""
    _host_param_count: int
    """Number of elements of the parameters that have a gradient."""
    _host_norm: NotRequired[Tensor]
    """0-d float64: L2 norm, right in any case. Where it is missing, `materialize_dual_grad_stats`
    takes the root of the squared sum: drop it after changing that, as a sum over ranks does."""


class AsyncSeedGradStats(TypedDict):
    """The seed's numbers, as `AsyncHostGradStats` has the host's."""

    _seed_squared_sum: Tensor
    _seed_param_count: int
    _seed_norm: NotRequired[Tensor]


class AsyncDualGradStats(AsyncHostGradStats, AsyncSeedGradStats):
    """The numbers of both, on one device."""


@dataclass(slots=True)
class DualGradientStats:
    """Host and seed at hand.

    Args:
        host_grad_norm: L2 norm of the host's gradients together; 0.0 without any.
        host_param_count: Number of elements of the host's parameters that have a gradient.
        seed_grad_norm: L2 norm of the seed's gradients together; 0.0 without any.
        seed_param_count: Number of elements of the seed's parameters that have a gradient.
    """

    host_grad_norm: float
    host_param_count: int
    seed_grad_norm: float
    seed_param_count: int

    @property
    def normalized_ratio(self) -> float:
        """(seed norm / √seed params) / (host norm / √host params): the ratio of their RMS.

        0.0 when either side has no norm or no parameters.
        """
        return normalized_ratio(
            self.seed_grad_norm, self.seed_param_count, self.host_grad_norm, self.host_param_count
        )


def collect_host_gradients_async(
    params: Iterable[Tensor], device: Device | None = None
) -> AsyncHostGradStats:
    """Enqueue the host's numbers and return at once; see `collect_dual_gradients_async`."""
    where = None if device is None else check_device(device)
    return _host(gradients_of(params), where)


def collect_seed_gradients_only_async(
    params: Iterable[Tensor], device: Device | None = None
) -> AsyncSeedGradStats:
    """Enqueue the seed's numbers and return at once; see `collect_dual_gradients_async`."""
    where = None if device is None else check_device(device)
    return _seed(gradients_of(params), where)


def collect_dual_gradients_async(
    host: Iterable[Tensor], seed: Iterable[Tensor], device: Device | None = None
) -> AsyncDualGradStats:
    """Enqueue the numbers of host and seed and return at once.

    Args:
        host: Parameters, or other tensors with `.grad`; iterated over once.
        seed: Parameters, or other tensors with `.grad`; iterated over once.
        device: Where the numbers are to lie. None takes that of the first gradient, the CPU only
            if no gradient is elsewhere. Numbers that are to lie on the CPU, of gradients that
            do not, are there only once the stream was synchronised.

    Raises:
        TypeError: If *host* or *seed* is no iterable of tensors.
        ValueError: If *device* does not exist, a gradient is complex, or either is none of cpu and
            cuda.
    """
    where = None if device is None else check_device(device)
    of_host, of_seed = gradients_of(host, "host"), gradients_of(seed, "seed")
    both = [*of_host.tensors, *of_seed.tensors]
    if where is None and both:
        where = home(both)
    return {**_host(of_host, where), **_seed(of_seed, where)}


def materialize_dual_grad_stats(async_stats: AsyncDualGradStats) -> DualGradientStats:
    """Bring the numbers of host and seed to the host, in one transfer that waits for the device.

    Args:
        async_stats: What `collect_dual_gradients_async` returned, or what the two others did, in
            one dict. Synchronise the stream first, and nothing is waited for here.
    """
    host, seed = async_stats.get("_host_norm"), async_stats.get("_seed_norm")
    host = async_stats["_host_squared_sum"].sqrt() if host is None else host
    seed = async_stats["_seed_squared_sum"].sqrt() if seed is None else seed
    host_norm, seed_norm = pack([host, seed.to(host.device)]).tolist()
    return DualGradientStats(
        host_norm, async_stats["_host_param_count"], seed_norm, async_stats["_seed_param_count"]
    )


def _host(gradients: Gradients, device: torch.device | None) -> AsyncHostGradStats:
    squared, norm = _sums(gradients, device)
    return {
        "_host_squared_sum": squared,
        "_host_param_count": gradients.num_elements,
        "_host_norm": norm,
    }


def _seed(gradients: Gradients, device: torch.device | None) -> AsyncSeedGradStats:
    squared, norm = _sums(gradients, device)
    return {
        "_seed_squared_sum": squared,
        "_seed_param_count": gradients.num_elements,
        "_seed_norm": norm,
    }


def _sums(gradients: Gradients, device: torch.device | None) -> tuple[Tensor, Tensor]:
    if not gradients.tensors:
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return zero, zero.clone()
    norms = measure(gradients.tensors)[L2]
    squared, norm = norms.square().sum(), total_norm(norms, torch)
    if device is None:
        return squared, norm
    return squared.to(device, non_blocking=True), norm.to(device, non_blocking=True)
