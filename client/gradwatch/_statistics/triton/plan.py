"""Division of the elements of a set of tensors among the programs of the kernel.

It is worked out once per set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from gradwatch._statistics.triton import combine_kernel, reduce_kernel
from gradwatch._statistics.triton.addresses import Addresses
from gradwatch._statistics.triton.combine_kernel import NUM_ROWS, combine_segments
from gradwatch._statistics.triton.reduce_kernel import MAX_TILES, TILE_BYTES, reduce_segments

FORMATS: Final = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
"""Dtypes that the kernel reads, with their names in Triton."""

PROGRAMS_PER_MULTIPROCESSOR: Final = 8

MIN_TILES: Final = 4
"""Tiles in a segment at least, if the tensor has them: below, its begin and end cost more."""

_PADDING: Final = 16
"""Sections of a table begin at multiples of so many int64, as those of each table do."""


@dataclass(frozen=True, slots=True)
class DeviceSize:
    """Properties of a device that decide how work is divided.

    Args:
        multiprocessors: Their number.
        warp: Threads in one.
    """

    multiprocessors: int = 1
    warp: int = 32

    @classmethod
    def of(cls, device: torch.device) -> DeviceSize:
        """Return that of a device; a CPU has Triton's interpreter."""
        if device.type != "cuda":
            return cls()
        properties = torch.cuda.get_device_properties(device)
        warp = getattr(properties, "warp_size", 64 if torch.version.hip else 32)
        return cls(properties.multi_processor_count, warp)


@dataclass(frozen=True, slots=True)
class _Launch:
    """The programs that read the tensors of one format."""

    format: str
    first_program: int
    num_programs: int


@dataclass(slots=True)
class _Layout:
    """Tables of a plan, while it is made."""

    programs: list[int] = field(default_factory=list)  # the first segment of each
    segments: list[int] = field(default_factory=list)  # 5 numbers each: see `reduce_segments`
    split: list[int] = field(default_factory=list)  # 3 numbers each: see `combine_segments`
    num_partials: int = 0

    def add(self, tensors: Sequence[tuple[int, int]], per_tile: int, num_programs: int) -> None:
        """Add the tensors of one format, given as number and elements."""
        tiles = [-(-numel // per_tile) for _, numel in tensors]
        # What a segment costs beside its tiles is about one more.
        share = -(-(sum(tiles) + len(tiles)) // num_programs)
        longest = min(max(share, MIN_TILES), MAX_TILES)
        load = share  # full: the first segment opens a program
        for (tensor, numel), count in zip(tensors, tiles, strict=True):
            pieces = max(1, -(-count // longest))
            length = -(-count // pieces)
            if pieces > 1:
                self.split += tensor, self.num_partials, self.num_partials + pieces
            for piece in range(pieces):
                if load + length + 1 > share:
                    self.programs.append(len(self.segments) // 5)
                    load = 0
                load += length + 1
                begin = piece * length * per_tile
                end = min(begin + length * per_tile, numel)
                place = tensor if pieces == 1 else -1 - self.num_partials - piece
                self.segments += tensor, begin, end, numel, place
            if pieces > 1:
                self.num_partials += pieces


class LaunchPlan:
    """Plan that measures tensors of these sizes and dtypes, wherever they lie on their device.

    Its tables lie on the device; a call uploads no more than addresses that have changed. Each is
    for one stream and one thread at a time.

    Args:
        numels: Elements of each tensor.
        dtypes: Of each, among `FORMATS`.
        device: Where they are.
        size: Of the device.
    """

    def __init__(
        self,
        numels: Sequence[int],
        dtypes: Sequence[torch.dtype],
        device: torch.device,
        size: DeviceSize,
    ) -> None:
        self._num_tensors = len(numels)
        self._device = device
        self._warp_size = size.warp
        layout = _Layout()
        self._launches: list[_Launch] = []
        for dtype in dict.fromkeys(dtypes):
            own = [(i, numels[i]) for i, each in enumerate(dtypes) if each is dtype]
            first = len(layout.programs)
            layout.add(
                own,
                TILE_BYTES // dtype.itemsize,
                PROGRAMS_PER_MULTIPROCESSOR * size.multiprocessors,
            )
            launch = _Launch(FORMATS[dtype], first, len(layout.programs) - first)
            self._launches.append(launch)
        layout.programs.append(len(layout.segments) // 5)
        self._num_split = len(layout.split) // 3
        self._num_partials = layout.num_partials
        tables = (layout.programs, layout.segments, layout.split)
        self._programs, self._segments, self._split = upload(tables, device)
        shape = NUM_ROWS, max(layout.num_partials, 1)
        self._partials = torch.empty(shape, dtype=torch.float64, device=device)
        self._addresses = Addresses(len(numels), device)

    @property
    def addresses(self) -> Sequence[int]:
        return self._addresses.latest

    def warm_up(self) -> None:
        """Compile and load the kernels of the plan, and read nothing."""
        self.run([0] * self._num_tensors)
        if not self._num_split:
            self._combine(self._partials)

    def run(self, addresses: Sequence[int], out: Tensor | None = None) -> Tensor:
        """Enqueue the kernels on the current stream of the current device, which is the plan's.

        Args:
            addresses: Of the first element of each tensor.
            out: (NUM_ROWS, tensors) float64, written; each row lies densely. None makes one.

        Returns:
            What was written, a row per statistic in the order of `ROW_COLUMNS`.

        Raises:
            BehindError: If there is no memory to upload addresses from; nothing is launched then.
        """
        if out is None:
            out = torch.empty(NUM_ROWS, self._num_tensors, dtype=torch.float64, device=self._device)
        self._addresses.update(addresses)
        stride = out.stride(0)
        for launch in self._launches:
            reduce_segments[(launch.num_programs,)](
                self._addresses.on_device,
                self._programs,
                self._segments,
                self._partials,
                out,
                launch.first_program,
                self._num_partials,
                stride,
                FORMAT=launch.format,
                num_warps=reduce_kernel.THREADS // self._warp_size,
            )
        if self._num_split:
            self._combine(out)
        return out

    def _combine(self, out: Tensor) -> None:
        combine_segments[(max(self._num_split, 1),)](
            self._split,
            self._partials,
            out,
            self._num_partials,
            out.stride(0),
            num_warps=combine_kernel.THREADS // self._warp_size,
        )


def upload(tables: Sequence[Sequence[int]], device: torch.device) -> list[Tensor]:
    """Return each table as int64 on the device, beginning at the same alignment in each plan."""
    padded = [(len(table) // _PADDING + 1) * _PADDING for table in tables]
    on_host = torch.zeros(
        sum(padded), dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda"
    )
    for table, begin in zip(tables, accumulate(padded, initial=0), strict=False):
        on_host[begin : begin + len(table)] = torch.tensor(table, dtype=torch.int64, device="cpu")
    # Torch keeps the pinned block from others until the copy is done.
    return list(on_host.to(device, non_blocking=True).split(padded))
