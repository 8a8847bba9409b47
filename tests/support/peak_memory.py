"""How much memory the tensors take that are made in a block, at their highest together."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Counts what every operation of the block makes and leaves alive, on any device.

    Attributes:
        peak: Bytes of all that is alive at once, at most.
        largest: Bytes of the largest tensor of all.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self.peak = self.largest = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {_storage_of(each)._cdata for each in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for made in _tensors(result):
            storage = _storage_of(made)
            if storage._cdata not in given and storage._cdata not in self._living():
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self.largest = max(self.largest, storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self._living().values()))
        return result

    def _living(self) -> dict[int, tuple[StorageWeakRef, int]]:
        self._alive = {key: each for key, each in self._alive.items() if not each[0].expired()}
        return self._alive


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
