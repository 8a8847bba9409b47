"""Which tensor in what a block returns is the hidden state, that the next block gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from torch import Tensor

OUTPUT_KEYS: Final = ("hidden_states", "last_hidden_state")
"""Where the hidden state is in an output that has names, the most telling first."""


def hidden_state(output: object) -> Tensor | None:
    """Return the tensor that goes on to the next block, None if there is none."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, (tuple, list)):
        return next((value for value in output if isinstance(value, Tensor)), None)
    if isinstance(output, Mapping):
        named = [output.get(key) for key in OUTPUT_KEYS]
        values: Iterable[object] = output.values()
    elif hasattr(output, "to_tuple"):
        named = [getattr(output, key, None) for key in OUTPUT_KEYS]
        values = output.to_tuple()
    else:
        return None
    # Models that return the states of all their layers return them from first to last.
    lasts = (value[-1] if isinstance(value, (tuple, list)) and value else value for value in named)
    return next((value for value in (*lasts, *values) if isinstance(value, Tensor)), None)
