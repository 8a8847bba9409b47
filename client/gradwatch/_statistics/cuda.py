"""On a CUDA device: what the kernel measures, what it leaves to another path, and why.

Whether it runs is found out once, for a device and for each dtype, and kept with its cause: trying
again in each step would cost milliseconds of a failing import or compilation in each.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final

import torch
from torch import Tensor

from gradwatch._statistics.triton.addresses import BehindError
from gradwatch_wire.columns import MEASURED_COLUMNS


def is_public_forced() -> bool:
    return os.environ.get("GRADWATCH_FOREACH") == "0"


_KNOWN: Final = frozenset(MEASURED_COLUMNS)


@dataclass(slots=True)
class Measured:
    """Numbers that the kernel has measured of some gradients.

    Args:
        values: Column to (those it took,) float64, in their order; empty if it took none.
        cause: Why it left one that it would measure on a sound system, empty if there is none.
    """

    values: dict[str, Tensor] = field(default_factory=dict)
    left: Sequence[int] = ()
    cause: str = ""


_unusable: Final[dict[torch.device, str]] = {}  # the cause, on devices where it will never run


def kernel_statistics(
    gradients: Sequence[Tensor], columns: Sequence[str], out: Tensor | None = None
) -> Measured:
    """Measure by the kernel what it can be given.

    Args:
        columns: Which of the wire's `MEASURED_COLUMNS`.
        out: As in `triton_statistics`; used only if the kernel takes all.

    Raises:
        KeyError: If there is no such column.
    """
    if not _KNOWN.issuperset(columns):
        raise KeyError(set(columns).difference(_KNOWN).pop())
    device = gradients[0].device
    cause = _unusable.get(device, "")
    if not cause:
        try:
            return _measure(gradients, columns, out)
        except Exception as error:  # noqa: BLE001 - another path takes over, and the cause is told
            cause = _note(device, error)
    return Measured(left=range(len(gradients)), cause=cause)


def warm_up(device: torch.device, dtypes: Collection[torch.dtype]) -> str:
    """Compile and load the kernels for dtypes of which that was not done yet.

    Returns:
        Why gradients of one of them are left to a slower path, empty if none is.
    """
    if device in _unusable or is_public_forced():
        return _unusable.get(device, "")
    try:
        triton = _triton()
        causes = [triton.why_refused(device, dtype) for dtype in dtypes if dtype in triton.FORMATS]
    except Exception as error:  # noqa: BLE001 - another path takes over, and the cause is told
        return _note(device, error)
    return next(filter(None, causes), "")


def _measure(gradients: Sequence[Tensor], columns: Sequence[str], out: Tensor | None) -> Measured:
    triton = _triton()
    try:
        return Measured(triton.triton_statistics(gradients, columns, out))
    except triton.UnreadableError:
        taken = [gradient for gradient in gradients if triton.is_readable(gradient)]
        left = [i for i, gradient in enumerate(gradients) if not triton.is_readable(gradient)]
    dtypes = {gradients[place].dtype for place in left}.intersection(triton.FORMATS)
    refused = (triton.why_refused(gradients[0].device, dtype) for dtype in dtypes)
    cause = next(filter(None, refused), "")
    values = triton.triton_statistics(taken, columns) if taken else {}
    return Measured(values, left, cause)


def _note(device: torch.device, error: Exception) -> str:
    """Keep why the kernel does not run on a device, unless that may pass; return it."""
    cause = f"triton: {error!r}"
    if not isinstance(error, BehindError) and "out of memory" not in str(error):
        _unusable[device] = cause
    return cause


@functools.cache
def _triton() -> ModuleType:
    # Triton takes a third of a second to import, and is not everywhere.
    return importlib.import_module("gradwatch._statistics.triton.statistics")
