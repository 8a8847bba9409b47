"""The digest of tensors: numbers by which copies of them can be compared, on their device.

The sum of the bits does not depend on the order in which elements are added, so the same numbers
give the same sum whatever computes it; one element that is another changes it. (Several may cancel
out, as two that are exchanged do: it is a check, and no signature.) It is made of words
of 8 bytes as they lie in memory, for which no wider copy of a tensor is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from gradwatch._statistics.digest_columns import BITS_HIGH, BITS_LOW, DIGEST_COLUMNS
from gradwatch._statistics.gradients import CHUNK, flats
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import L2, LINF, WEIGHT_L2, WEIGHT_LINF

_WORD_BYTES: Final = 8
_HALF: Final = 0xFFFF_FFFF
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def digest(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the columns of the digest, (tensors,) float64 each; on a GPU only enqueue the work.

    Args:
        tensors: Dense real ones of one device, of any shape, strides and floating dtype.
    """
    norms = statistics(tensors, (L2, LINF)).values
    with torch.no_grad():
        bits = torch.stack([sum_of_bits(tensor) for tensor in tensors])
        return {
            WEIGHT_L2: norms[L2],
            WEIGHT_LINF: norms[LINF],
            BITS_LOW: (bits & _HALF).to(torch.float64),
            BITS_HIGH: ((bits >> 32) & _HALF).to(torch.float64),
        }


def digest_in(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: columns[name] for name in columns if name in DIGEST_COLUMNS}


def sum_of_bits(tensor: Tensor) -> Tensor:
    """Return the sum of a dense tensor's words modulo 2^64, 0-d int64 on its device.

    Elements beyond the last whole word count as integers of their own size.
    """
    sums = [part.sum(dtype=torch.int64) for flat in flats(tensor) for part in _words(flat)]
    if not sums:
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum()


def _words(flat: Tensor) -> Iterator[Tensor]:
    """Yield all of a 1-d contiguous tensor as integers."""
    size = flat.element_size()
    whole = len(flat) - len(flat) % (_WORD_BYTES // size)
    if whole and not flat.storage_offset() * size % _WORD_BYTES:
        yield flat[:whole].view(torch.int64)
    elif whole:  # words begin where this begins, not where the memory under it does
        for chunk in flat[:whole].split(CHUNK):
            yield chunk.clone().view(torch.int64)
    if whole < len(flat):
        yield flat[whole:].clone().view(_INTEGERS[size])
