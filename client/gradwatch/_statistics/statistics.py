"""The numbers: one function for the statistics of many gradients, exact for every finite input.

`l2`, `l1` and `linf` are norms, within 1e-5 of a float64 reference for every finite input in every
dtype; `zeros`, `nans` and `infs` are numbers of elements. A norm is NaN exactly if an element is
NaN, Inf exactly if none is NaN and one is Inf, zero exactly if all are zero. `docs/statistics.md`
says which path runs where, and why it is exact.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwatch._statistics.foreach import foreach_statistics, public_statistics
from gradwatch._statistics.rows import row_statistics
from gradwatch._statistics.small import is_small, small_statistics
from gradwatch_wire.columns import L2

Path = Callable[[Sequence[Tensor], Sequence[str]], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers of several gradients of one device.

    Args:
        values: Column to (gradients,) float64 on their device.
        path: Name of the path that ran: `small`, `rows`, `triton`, `foreach` or `public`.
        declined: Why a better path did not run, empty if the best one did.
    """

    values: dict[str, Tensor]
    path: str
    declined: str = ""


@torch.no_grad()
def statistics(gradients: Sequence[Tensor], columns: Sequence[str] = (L2,)) -> Statistics:
    """Return statistics of each gradient; on a GPU only enqueue the work.

    Args:
        gradients: Dense real tensors of one device, of any shape, strides and floating dtype.
        columns: Which of the wire's `MEASURED_COLUMNS`.
    """
    if not gradients:
        empty = {name: torch.empty(0, dtype=torch.float64, device="cpu") for name in columns}
        return Statistics(empty, "rows")
    declined = ""
    for name, path in _paths(gradients, columns):
        try:
            return Statistics(path(gradients, columns), name, declined)
        except Exception as error:
            if name == "public":
                raise
            declined = f"{name}: {error!r}"
    raise AssertionError


def _paths(gradients: Sequence[Tensor], columns: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the paths to try, the best one first."""
    device = gradients[0].device
    if torch.compiler.is_compiling():
        # One graph for all inputs: without branches on values.
        yield "foreach", foreach_statistics
    elif os.environ.get("GRADWATCH_FOREACH") != "0":
        if device.type == "cpu":
            if is_small(gradients, columns):
                yield "small", small_statistics
            yield "rows", row_statistics
        else:
            if device.type == "cuda":
                yield "triton", _triton_statistics
            yield "foreach", foreach_statistics
    yield "public", public_statistics


def _triton_statistics(gradients: Sequence[Tensor], columns: Sequence[str]) -> dict[str, Tensor]:
    # Triton takes a third of a second to import, and is not everywhere.
    from gradwatch._statistics.triton import triton_statistics  # noqa: PLC0415

    return triton_statistics(gradients, columns)
