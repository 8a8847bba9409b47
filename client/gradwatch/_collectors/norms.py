"""Statistics of gradients that lie on one device or several."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwatch._statistics.devices import places_by_device
from gradwatch._statistics.statistics import Statistics, statistics
from gradwatch_wire.columns import L2


def measure(gradients: Sequence[Tensor], columns: Sequence[str] = (L2,)) -> dict[str, Tensor]:
    """Enqueue the statistics of gradients of one or more devices, and wait for none of them.

    Args:
        gradients: At least one; dense, real tensors.
        columns: Which of the wire's `MEASURED_COLUMNS`.

    Returns:
        Column to (gradients,) float64, in the order of the gradients, on one device: see `home`.
    """
    places = places_by_device(gradients)
    if len(places) == 1:
        return _announced(statistics(gradients, columns))
    device = home(gradients)
    gap = torch.empty(0, device="cpu")
    ordered: dict[str, list[Tensor]] = {name: [gap] * len(gradients) for name in columns}
    for mine in places.values():
        found = _announced(statistics([gradients[place] for place in mine], columns))
        for name in columns:
            moved = found[name].to(device, non_blocking=True)
            for place, value in zip(mine, moved.unbind(), strict=True):
                ordered[name][place] = value
    return {name: torch.stack(values) for name, values in ordered.items()}


def _announced(found: Statistics) -> dict[str, Tensor]:
    """Return the values; warn if a slower path had to take over. Python shows that once."""
    if found.declined:
        why = f"gradwatch: statistics by a slower path, {found.path}; {found.declined}"
        warnings.warn(why, RuntimeWarning, stacklevel=3)
    return found.values


def home(gradients: Sequence[Tensor]) -> torch.device:
    """Return the device where the numbers of all *gradients* meet: the first that is not a CPU.

    Work on the CPU does not wait for a copy that is still on its way there; work on an accelerator
    does.
    """
    devices = [gradient.device for gradient in gradients]
    return next((device for device in devices if device.type != "cpu"), devices[0])
