"""A gradient as what it stores: dense, local, flat, and never copied whole."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gradwatch_wire.columns import L1, L2, LINF

_STRIDED: Final = torch.strided

SMALL_DTYPES: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Types whose squares and their sums float64 holds, whatever the numbers are."""

CHUNK: Final = 1 << 19
"""Elements that are copied at once where a copy cannot be avoided: 4 MB in float64, of which there
may be some at a time."""


def dense(gradient: Tensor) -> Tensor:
    """Return the numbers that this process stores of a gradient, as a dense tensor.

    Of a sparse gradient the values that are not stored are zero, and are left out: `num_unstored`
    says how many. Of a DTensor the local shard is taken. No collective is called.

    Raises:
        TypeError: If it is of a kind that cannot be read without a copy of it.
    """
    if is_plain(gradient):
        return gradient
    own = local_part(gradient)
    if own.is_sparse:
        return own.coalesce().values()
    if why := why_unreadable(own):
        msg = f"a gradient {why} cannot be measured"
        raise TypeError(msg)
    if type(own) is not Tensor:
        own = own.as_subclass(Tensor)  # sums of a subclass would be of it, too
        if own.numel() and not own.is_meta and not own.data_ptr():
            msg = f"a gradient of class {type(gradient).__name__}, without elements of its own, "
            raise TypeError(msg + "cannot be measured")
    return own


def gradient_of(parameter: Any) -> Tensor | None:
    """Return the gradient of a parameter: Megatron adds it to `main_grad`, and empties `grad`."""
    gradient: Tensor | None = parameter.grad
    return getattr(parameter, "main_grad", None) if gradient is None else gradient


def is_plain(gradient: Tensor) -> bool:
    """Tell whether it is nothing but its elements in memory, as nearly all gradients are."""
    return (
        type(gradient) is Tensor
        and gradient.layout is _STRIDED
        and not gradient.is_nested
        and not gradient.is_meta
    )


def why_unreadable(tensor: Tensor) -> str:
    """Return what of a tensor keeps it from being measured, as in `of layout X`; else nothing."""
    if tensor.is_nested:
        return "that is a nested tensor"
    if is_traceable_wrapper_subclass(tensor):
        return f"of class {type(tensor).__name__}, which wraps others,"  # it has no elements
    if tensor.layout is _STRIDED or tensor.is_sparse:
        return ""
    return f"of layout {tensor.layout}"


def num_unstored(gradient: Tensor, stored: Tensor) -> int:
    """Return how many elements of a gradient are zero because they are not stored.

    Args:
        gradient: As autograd left it.
        stored: What `dense` returned for it.
    """
    if stored is gradient:
        return 0
    own = local_part(gradient)
    return own.numel() - stored.numel() if own.is_sparse else 0


def local_part(tensor: Tensor) -> Tensor:
    """Return, detached, what this process holds of a tensor: all of it, or its shard."""
    if not is_distributed(tensor):
        return tensor.detach()
    own: Tensor = tensor._local_tensor  # type: ignore[attr-defined]  # a DTensor
    # to_local() would also wait for a reduction over ranks that is still running.
    return (own.wait() if hasattr(own, "wait") else own).detach()


def is_distributed(tensor: Tensor) -> bool:
    # Importing that module takes half a second; if nobody did so far, no tensor is one.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def is_packed(gradient: Tensor) -> bool:
    """Tell whether the elements of a dense tensor lie in memory without gaps, in any order."""
    return gradient.is_contiguous() or _as_it_lies(gradient).is_contiguous()


def _as_it_lies(gradient: Tensor) -> Tensor:
    return gradient.permute(sorted(range(gradient.dim()), key=gradient.stride, reverse=True))


def flats(gradient: Tensor) -> Iterator[Tensor]:
    """Yield all elements of a dense tensor in 1-d contiguous pieces, in any order.

    Elements that lie in memory without gaps come as views; of others at most `CHUNK` at once are
    copied.
    """
    if gradient.is_contiguous():
        yield gradient.view(-1)
        return
    # A transposed tensor has no gaps either; in which order it is read does not matter.
    packed = _as_it_lies(gradient)
    if packed.is_contiguous():
        yield packed.view(-1)
        return
    for part in _parts(packed):
        # A regular stride would make reshape return a view that has it.
        yield part.reshape(-1).contiguous()


def chunks(gradient: Tensor) -> Iterator[Tensor]:
    """Yield all elements of a dense tensor in 1-d pieces of at most `CHUNK`."""
    for flat in flats(gradient):
        yield from flat.split(CHUNK)


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Cut along the first dimensions into parts of at most `CHUNK` elements."""
    if tensor.numel() <= CHUNK:
        yield tensor
        return
    each = CHUNK * len(tensor) // tensor.numel()
    if each:
        yield from tensor.split(each)
        return
    for row in tensor.unbind():
        yield from _parts(row)


def count_nonfinite(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of NaN and of Inf elements, 0-d float64 each, on its device."""
    nans = torch.zeros((), dtype=torch.float64, device=gradient.device)
    infs = nans.clone()
    for chunk in chunks(gradient):
        # Of the types of 8 bits torch can do little more than copy them.
        wide = chunk.float() if chunk.dtype.itemsize == 1 else chunk
        nans += wide.isnan().sum()
        infs += wide.isinf().sum()
    return nans, infs


def exact_norms(gradient: Tensor) -> dict[str, float]:
    """Return l2, l1 and linf, scaled by the largest magnitude: no square leaves float64's range.

    A norm beyond the largest float64 is given as that: it is no sign of an Inf element.

    Args:
        gradient: Finite.
    """
    peaks = (float(chunk.double().abs().amax()) for chunk in chunks(gradient) if chunk.numel())
    largest = max(peaks, default=0.0)
    if not largest:
        return dict.fromkeys((L2, L1, LINF), 0.0)
    squares = magnitudes = 0.0
    for chunk in chunks(gradient):
        scaled = chunk.double() / largest
        squares += float(scaled.square().sum())
        magnitudes += float(scaled.abs().sum())
    return {
        L2: min(largest * math.sqrt(squares), sys.float_info.max),
        L1: min(largest * magnitudes, sys.float_info.max),
        LINF: largest,
    }
