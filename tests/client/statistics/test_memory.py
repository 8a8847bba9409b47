"""Memory that a measurement takes at its highest: 16 MB at most, whatever the gradients are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradwatch._statistics.foreach import foreach_statistics, public_statistics
from gradwatch._statistics.rows import row_statistics
from gradwatch._statistics.statistics import Path, cuda_statistics, statistics
from gradwatch._statistics.updates import size_of_update, take_sample
from gradwatch_wire.columns import MEASURED_COLUMNS

pytest.importorskip("triton")

from gradwatch._statistics.triton import plan as plans

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning:numpy|triton")]

PROMISED = 16 << 20
"""Bytes; `docs/statistics.md` says so."""

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
FLOAT8 = torch.float8_e4m3fn
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda gradient: gradient,
    "with gaps": lambda gradient: gradient[:, 1:],
    "turned, with gaps": lambda gradient: gradient.T[::2],
}


class Launches:
    """Takes the place of a kernel: what it reads and writes is there, and it makes nothing."""

    def __init__(self) -> None:
        self.programs = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.programs += math.prod(grid)
        return lambda *_, **__: None


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """The kernels are launched on nothing: Triton's interpreter would take minutes."""
    made = Launches()
    monkeypatch.setattr(plans, "reduce_segments", made)
    monkeypatch.setattr(plans, "combine_segments", made)
    return made


def by_kernel(gradients: Sequence[Tensor], columns: Sequence[str]) -> dict[str, Tensor]:
    """The path of CUDA devices, with an ordinary gradient beside those of the test."""
    found = cuda_statistics([torch.ones(1000), *gradients], columns)
    assert (found.path, found.declined) == ("triton", "")
    return found.values


PATHS: dict[str, Path] = {
    "rows": row_statistics,
    "triton": by_kernel,
    "foreach": foreach_statistics,
    "public": public_statistics,
}


def test_memory_is_counted_while_it_is_there() -> None:
    with PeakMemory() as seen:
        first = torch.ones(1000)
        second = first + first.view(10, 100).view(-1)
        del first
        second *= 2
        torch.cat([second, second])

    assert (seen.peak, seen.largest) == (12_000, 8000)


@pytest.mark.sampled(12)
@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize("spoiled", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [*DTYPES, FLOAT8], ids=str)
@pytest.mark.parametrize("name", PATHS)
def test_all_that_a_path_makes_has_room_in_16_mb(
    name: str, dtype: torch.dtype, view: str, spoiled: bool
) -> None:
    """Of all at once, not of the largest alone; also of what the kernel leaves (row A11)."""
    if (name, dtype) == ("rows", FLOAT8):
        pytest.skip("goes to the public functions, as on a GPU")
    gradient = torch.ones(3000, 3000)
    if spoiled:
        gradient[5, 5] = math.nan
    gradient = VIEWS[view](gradient.to(dtype))
    with PeakMemory() as seen:
        PATHS[name]([gradient], MEASURED_COLUMNS)

    assert 0 < seen.peak <= PROMISED


def test_100_000_small_tensors_have_room_in_16_mb() -> None:
    """Also where all are measured again in float64, and counted (row A11)."""
    gradients = torch.full((100_000, 256), math.nan).unbind()
    with PeakMemory() as seen:
        found = statistics(gradients, MEASURED_COLUMNS)

    assert (found.path, found.declined) == ("rows", "")
    assert 0 < seen.peak <= PROMISED


@pytest.mark.parametrize(("count", "size"), [(2_000, 1_024), (256, 65_536)])
def test_the_update_of_any_model_has_room_in_16_mb(count: int, size: int) -> None:
    weights = [torch.nn.Parameter(each) for each in torch.ones(count, size).unbind()]
    with PeakMemory() as seen:
        found = size_of_update(take_sample(weights, torch.device("cpu")))

    assert found["update_rms"].tolist() == [0.0] * count
    assert 0 < seen.peak <= PROMISED


@pytest.mark.parametrize("columns", [("l2",), MEASURED_COLUMNS])
def test_a_tensor_of_a_billion_elements_has_room_in_16_mb(columns: tuple[str, ...]) -> None:
    """The numbers of its rows alone would take more."""
    gradient = torch.ones(1 << 20).expand(1 << 9, -1)
    with PeakMemory() as seen:
        found = row_statistics([gradient], columns)

    assert found["l2"].item() == pytest.approx(math.sqrt(1 << 29))
    assert 0 < seen.peak <= PROMISED


@pytest.mark.parametrize(
    "numels",
    [[525_000_000, *[64] * 10_000], [2**31 + 5], [50_257 * 768, *[768 * 3072] * 36]],
    ids=["many and a huge one", "more than 2^31", "a model"],
)
def test_the_kernel_needs_little_beside_what_it_reads(
    launches: Launches, numels: list[int]
) -> None:
    """Tables, parts and results of any set of layers, on a device as large as there are."""
    with PeakMemory() as seen:
        size = plans.DeviceSize(multiprocessors=160)
        made = plans.LaunchPlan(numels, [torch.bfloat16] * len(numels), torch.device("cpu"), size)
        made.run(list(range(16, 16 + 16 * len(numels), 16)))

    assert launches.programs > 1000
    assert 0 < seen.peak <= PROMISED


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
