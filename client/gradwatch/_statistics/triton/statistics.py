"""The CUDA path: two kernels measure all six statistics of all gradients, and read each once."""

from __future__ import annotations

import contextlib
import operator
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Final

import torch
from torch import Tensor, nn

from gradwatch._statistics.gradients import is_packed
from gradwatch._statistics.triton.plan import FORMATS, Plan
from gradwatch_wire.columns import INFS, L1, L2, LINF, NANS, ZEROS

ROW_COLUMNS: Final = (L2, L1, LINF, ZEROS, NANS, INFS)
"""What the rows of the kernels' output are."""

MAX_PLANS: Final = 64
"""Sets of sizes and dtypes that are remembered per device and stream."""

_PLAIN: Final = frozenset({Tensor, nn.Parameter})
_dtype_of: Final = attrgetter("dtype")
_shape_of: Final = attrgetter("shape")
_lock: Final = threading.RLock()  # hooks measure in autograd's threads
_refused: Final[dict[tuple[torch.device, torch.dtype], str]] = {}


class UnreadableError(TypeError):
    """A gradient is none that the kernel may be given: told before anything is launched."""


def why_refused(device: torch.device, dtype: torch.dtype) -> str:
    """Return why the kernel does not run there for a dtype, empty if it does.

    Found out once, by compiling it and launching it on nothing: a launch loads it. Nothing is
    compiled for this dtype afterwards, whatever is measured.
    """
    causes = _refused
    if (device, dtype) not in causes:
        try:
            with _on(device):
                Plan([0], [dtype], device, 1).warm_up()
            causes[device, dtype] = ""
        except Exception as error:  # of Triton, of a compiler, of the driver
            if "out of memory" in str(error):  # may pass
                raise
            causes[device, dtype] = f"triton: {error!r}"
    return causes[device, dtype]


def is_readable(gradient: Tensor) -> bool:
    """Tell whether the kernel may be given this gradient: by its address and number of elements.

    A subclass of Tensor need not have its elements where `data_ptr` says, nor any there.
    """
    return (
        type(gradient) in _PLAIN
        and gradient.layout is torch.strided
        and gradient.dtype in FORMATS
        and (not gradient.numel() or bool(gradient.data_ptr()))
        and is_packed(gradient)
        and not why_refused(gradient.device, gradient.dtype)
    )


def triton_statistics(
    gradients: Sequence[Tensor], columns: Sequence[str], out: Tensor | None = None
) -> dict[str, Tensor]:
    """Return each column as (gradients,) float64; see `statistics`.

    Args:
        gradients: Of one device.
        columns: Which of `ROW_COLUMNS`.
        out: (ROW_COLUMNS, gradients) float64 on their device, whose rows are dense: where the
            numbers are written, whatever the columns. None takes new memory.

    Raises:
        UnreadableError: If one of them is not readable.
        KeyError: If there is no such column.
    """
    device = gradients[0].device
    with _lock, _on(device):
        plan, addresses = _find(gradients, device)
        values = plan.run(addresses, out)
    rows = dict(zip(ROW_COLUMNS, values.unbind(), strict=True))
    return {name: rows[name] for name in columns}


class _Plans:
    """The plans of one device and stream: the latest, and those that were in use before."""

    def __init__(self) -> None:
        self.numels: list[int] = []
        self.dtypes: list[torch.dtype] = []
        self.layouts: list[object] | None = None  # shapes and strides, if any is not contiguous
        self.plan: Plan | None = None
        self._known: OrderedDict[tuple[object, ...], Plan] = OrderedDict()

    def change(
        self, numels: list[int], dtypes: list[torch.dtype], device: torch.device
    ) -> Plan:
        """Return the plan for these from here on."""
        key = (*numels, *dtypes)
        plan = self._known.pop(key, None)
        if plan is None:
            plan = Plan(numels, dtypes, device, _num_multiprocessors(device))
            while len(self._known) >= MAX_PLANS:
                self._known.popitem(last=False)
        self._known[key] = plan
        self.numels, self.dtypes, self.plan = numels, dtypes, plan
        return plan


_plans: Final[dict[tuple[torch.device, int], _Plans]] = {}


def _find(gradients: Sequence[Tensor], device: torch.device) -> tuple[Plan, list[int]]:
    """Return the plan for gradients, and their addresses.

    This runs in each step for each gradient: attributes are read by `map`, which is C.
    """
    if not _PLAIN.issuperset(map(type, gradients)):
        _refuse(gradients)
    addresses = list(map(Tensor.data_ptr, gradients))
    numels = list(map(Tensor.numel, gradients))
    dtypes = list(map(_dtype_of, gradients))
    layouts: list[object] | None = None
    if not all(map(Tensor.is_contiguous, gradients)):
        layouts = [*map(_shape_of, gradients), *map(Tensor.stride, gradients)]
    if 0 in addresses and any(map(operator.lt, addresses, map(bool, numels))):
        _refuse(gradients)
    stream = torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0
    plans = _plans.get((device, stream))
    if plans is None:
        plans = _plans[device, stream] = _Plans()
    plan = plans.plan
    is_same = numels == plans.numels and dtypes == plans.dtypes
    if not is_same or (layouts is not None and layouts != plans.layouts):
        _refuse(gradients)
    if plan is None or not is_same:
        plan = plans.change(numels, dtypes, device)
    plans.layouts = layouts
    return plan, addresses


def _refuse(gradients: Sequence[Tensor]) -> None:
    """Raise if one is not readable."""
    for gradient in gradients:
        if not is_readable(gradient):
            kind = f"{type(gradient).__name__} of {gradient.dtype}"
            msg = f"the kernel is not given a {kind} of layout {gradient.layout} as it lies"
            raise UnreadableError(msg)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the current one: Triton launches there."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def _num_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # in the interpreter
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count

