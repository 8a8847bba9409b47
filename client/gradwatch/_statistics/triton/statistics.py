"""The CUDA path: two kernels measure all six statistics of all gradients, and read each once."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Final

import torch
from torch import Tensor, nn

from gradwatch._statistics.gradients import is_packed
from gradwatch._statistics.triton.plan import FORMATS, DeviceSize, LaunchPlan
from gradwatch_wire.columns import INFS, L1, L2, LINF, NANS, ZEROS

ROW_COLUMNS: Final = (L2, L1, LINF, ZEROS, NANS, INFS)
"""Columns in the order of the rows of the kernels' output."""

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
            with on(device):
                LaunchPlan([0], [dtype], device, DeviceSize.of(device)).warm_up()
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
    return is_plain_dense(gradient) and not why_refused(gradient.device, gradient.dtype)


def is_plain_dense(gradient: Tensor) -> bool:
    """Tell whether its elements lie without gaps behind `data_ptr`, in a dtype of the kernel."""
    return (
        type(gradient) in _PLAIN
        and gradient.layout is torch.strided
        and gradient.dtype in FORMATS
        and (not gradient.numel() or bool(gradient.data_ptr()))
        and is_packed(gradient)
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
    with _lock, on(device):
        plan, addresses = _find(gradients, device)
        values = plan.run(addresses, out)
    rows = dict(zip(ROW_COLUMNS, values.unbind(), strict=True))
    return rows if columns == ROW_COLUMNS else {name: rows[name] for name in columns}


class _Plans:
    """The plans of one device and stream, those used last at the end."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, tuple[LaunchPlan, Callable[..., bool]]] = OrderedDict()

    def find(self, gradients: Sequence[Tensor], device: torch.device) -> LaunchPlan:
        """Return the plan for gradients; it is made if there is none yet.

        Raises:
            UnreadableError: If one of them is not readable.
        """
        # Sets that take turns (two optimizers, hooks on each parameter) differ in this nearly
        # always; where they do not, it takes longer.
        first, last = gradients[0], gradients[-1]
        key = len(gradients), first.shape, last.shape, first.dtype
        plan, is_same = self._known.get(key, (None, _never))
        if plan is None or not is_same(*gradients):
            _refuse(gradients)
            numels, dtypes = [*map(Tensor.numel, gradients)], [*map(_dtype_of, gradients)]
            plan = LaunchPlan(numels, dtypes, device, DeviceSize.of(device))
            if key not in self._known and len(self._known) >= MAX_PLANS:
                self._known.popitem(last=False)
            self._known[key] = plan, _comparison(gradients)
        self._known.move_to_end(key)
        return plan


def _never(*_: Tensor) -> bool:
    return False


def _comparison(gradients: Sequence[Tensor]) -> Callable[..., bool]:
    """Return what tells whether tensors are of the same types, dtypes, shapes and strides.

    It keeps none of the gradients.
    """
    try:
        # What torch.compile compares all inputs of a graph with, in one call; private.
        guards = importlib.import_module("torch._C._dynamo.guards")
        check = guards.TensorGuards(
            *gradients, dynamic_dims_sizes=None, dynamic_dims_strides=None
        ).check
        if check(*gradients):
            found: Callable[..., bool] = check
            return found
    except Exception:  # noqa: BLE001, S110 - another version of torch: the way below is right, too
        pass
    known = _kinds(gradients)
    return lambda *others: _kinds(others) == known


def _kinds(gradients: Sequence[Tensor]) -> list[object]:
    kinds: list[object] = list(map(type, gradients))
    if _PLAIN.issuperset(kinds):  # attributes of a subclass may be of any kind
        for attribute in (_dtype_of, _shape_of, Tensor.stride):
            kinds += map(attribute, gradients)
    return kinds


_plans: Final[dict[tuple[torch.device, int], _Plans]] = {}


def _find(gradients: Sequence[Tensor], device: torch.device) -> tuple[LaunchPlan, Sequence[int]]:
    """Return the plan for gradients, and their addresses."""
    stream = torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0
    plans = _plans.get((device, stream))
    if plans is None:
        plans = _plans[device, stream] = _Plans()
    plan = plans.find(gradients, device)
    addresses = list(map(Tensor.data_ptr, gradients))
    known = plan.addresses
    if addresses == known:
        return plan, known
    if not all(addresses):
        _refuse(gradients)
    return plan, addresses


def _refuse(gradients: Sequence[Tensor]) -> None:
    """Raise if one is not readable."""
    for gradient in gradients:
        if not is_readable(gradient):
            kind = f"{type(gradient).__name__} of {gradient.dtype}"
            msg = f"the kernel is not given a {kind} of layout {gradient.layout} as it lies"
            raise UnreadableError(msg)


def on(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the current one: Triton launches there."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)
