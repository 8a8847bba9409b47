"""The numbers: one function for the statistics of many gradients, exact for every finite input.

`l2`, `l1` and `linf` are norms, within 1e-5 of a float64 reference for every finite input in every
dtype; `zeros`, `nans` and `infs` are numbers of elements. A norm is NaN exactly if an element is
NaN, Inf exactly if none is NaN and one is Inf, zero exactly if all are zero. `docs/statistics.md`
says which path runs where, and why it is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwatch._statistics.cuda import is_public_forced, kernel_statistics
from gradwatch._statistics.foreach import foreach_statistics, public_statistics
from gradwatch._statistics.rows import row_statistics
from gradwatch_wire.columns import L2

Path = Callable[[Sequence[Tensor], Sequence[str]], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers of several gradients of one device.

    Args:
        values: Column to (gradients,) float64 on their device.
        path: Name of the path that ran: `rows`, `triton`, `foreach` or `public`.
        declined: Why a better path did not run, empty if the best one did.
    """

    values: dict[str, Tensor]
    path: str
    declined: str = ""


def statistics(
    gradients: Sequence[Tensor], columns: Sequence[str] = (L2,), out: Tensor | None = None
) -> Statistics:
    """Return statistics of each gradient; on a GPU only enqueue the work.

    Args:
        gradients: Dense real tensors of one device, of any shape, strides and floating dtype.
        columns: Which of the wire's `MEASURED_COLUMNS`.
        out: (6, gradients) float64 on their device, whose rows are dense. Where the kernel measures
            all of them it writes all six there, and the values are its rows; see `ROW_COLUMNS`.
    """
    if not torch.is_grad_enabled():  # to switch it off again would cost as much as some norms
        return _statistics(gradients, columns, out)
    with torch.no_grad():
        return _statistics(gradients, columns, out)


def _statistics(
    gradients: Sequence[Tensor], columns: Sequence[str], out: Tensor | None
) -> Statistics:
    if not gradients:
        empty = {name: torch.empty(0, dtype=torch.float64, device="cpu") for name in columns}
        return Statistics(empty, "rows")
    if gradients[0].is_cuda and not torch.compiler.is_compiling() and not is_public_forced():
        return cuda_statistics(gradients, columns, out)
    return _by_first(_paths(gradients), gradients, columns)


def _by_first(
    paths: Iterable[tuple[str, Path]], gradients: Sequence[Tensor], columns: Sequence[str]
) -> Statistics:
    """Take the first path that works; the last one's own error is raised."""
    declined = ""
    for name, path in paths:
        try:
            return Statistics(path(gradients, columns), name, declined)
        except Exception as error:
            if name == "public":
                raise
            declined = f"{name}: {error!r}"
    raise AssertionError


def _paths(gradients: Sequence[Tensor]) -> Iterator[tuple[str, Path]]:
    """Yield the paths to try, the best one first."""
    if torch.compiler.is_compiling():
        # One graph for all inputs: without branches on values.
        yield "foreach", foreach_statistics
    elif not is_public_forced():
        if gradients[0].device.type == "cpu":
            yield "rows", row_statistics
        else:
            yield "foreach", foreach_statistics
    yield "public", public_statistics


def cuda_statistics(
    gradients: Sequence[Tensor], columns: Sequence[str], out: Tensor | None = None
) -> Statistics:
    """Take the kernel, and for what it leaves the next path: each odd gradient on its own.

    See `statistics`. Tensors on the CPU go through Triton's interpreter.
    """
    measured = kernel_statistics(gradients, columns, out)
    if not measured.left:
        return Statistics(measured.values, "triton")
    if not measured.values:
        found = _by_first(_paths(gradients), gradients, columns)
        return Statistics(found.values, found.path, measured.cause or found.declined)
    others = [
        _by_first(_paths([gradients[place]]), [gradients[place]], columns).values
        for place in measured.left
    ]
    values = {
        name: _merged(measured.values[name], measured.left, [other[name] for other in others])
        for name in columns
    }
    return Statistics(values, "triton", measured.cause)


def _merged(values: Tensor, places: Sequence[int], others: Sequence[Tensor]) -> Tensor:
    """Put (1,) tensors between those of a longer one, each to its place in the result.

    In slices: an index would have to be copied to the device.
    """
    parts: list[Tensor] = []
    begin = 0
    for number, (place, other) in enumerate(zip(places, others, strict=True)):
        parts += values[begin : place - number], other
        begin = place - number
    return torch.cat([*parts, values[begin:]])
