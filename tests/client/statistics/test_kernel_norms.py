"""The norm of one tensor by one launch is right, and hooks take it so. In Triton's interpreter.

On a machine with a GPU the same tests run on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch import GradientGainMonitor
from gradwatch._statistics import norm_slots
from gradwatch._statistics.norm_slots import Expected, NormSlots
from gradwatch._statistics.single import measure_norm
from tests.support.recording import Sink

pytest.importorskip("triton")

from gradwatch._statistics.triton import norms
from gradwatch._statistics.triton.norms import Parts, num_programs
from gradwatch._statistics.triton.plan import PROGRAMS_PER_MULTIPROCESSOR, DeviceSize
from gradwatch._statistics.triton.reduce_kernel import MAX_TILES, TILE_BYTES

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:numpy|triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
SIZE = DeviceSize.of(DEVICE)


def expected_norm(tensor: Tensor) -> float:
    wide = tensor.double().abs().cpu().reshape(-1)
    if wide.isnan().any():
        return math.nan
    largest = max(wide.tolist(), default=0.0)
    if not 0.0 < largest < math.inf:
        return largest
    # In two steps: 1 / 5e-324 is Inf.
    norm = float((wide / largest).square().sum().sqrt()) * largest
    return min(norm, torch.finfo(torch.float64).max)


def assert_right(tensors: Sequence[Tensor], num_parts: int = 3) -> None:
    """Measure each in a place of its own, in which something else was measured before."""
    parts = Parts([num_parts] * len(tensors), DEVICE, SIZE)
    parts.memory[1].fill_(math.nan)
    for place, tensor in enumerate(tensors):
        parts.measure(place, tensor)
    parts.combine()
    for place, tensor in enumerate(tensors):
        close = pytest.approx(expected_norm(tensor), rel=1e-5, abs=0, nan_ok=True)
        assert parts.norms[place].item() == close, (place, tensor.shape, tensor.dtype)


def random_bits(size: int, dtype: torch.dtype, seed: int) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    whole = torch.randint(-(1 << 62), 1 << 62, (size,), generator=made)
    return (whole << 1).to(BITS[dtype.itemsize]).view(dtype).to(DEVICE)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_bits_at_any_offset_are_measured_right(dtype: torch.dtype) -> None:
    per_tile = TILE_BYTES // dtype.itemsize
    tensors = []
    for seed, size in enumerate([0, 1, 7, per_tile - 1, 2 * per_tile + 5]):
        bits = random_bits(size + 9, dtype, seed)
        finite = torch.where(bits.isfinite(), bits, torch.zeros((), dtype=dtype, device=DEVICE))
        ordinary = torch.randn(size + 9, device=DEVICE).to(dtype)
        bad = ordinary.clone()
        bad[size // 2] = -math.inf
        tensors += [bits[3:][:size], finite[:size], ordinary[3:][:size], bad[:size]]

    assert_right(tensors)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_of_any_scale_are_put_together(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    tiny = limits.smallest_normal * limits.eps
    per_tile = TILE_BYTES // dtype.itemsize
    scales = {
        "largest": [limits.max] * 3,
        "smallest": [tiny] * 3,
        "zeros": [0.0] * 3,
        "mixed": [tiny, 1.0, 0.0],
        "far": [limits.max, tiny, 0.0],
        "late": [0.0, 0.0, tiny],
        "bad": [math.inf, tiny, math.nan],
        "infinite": [1.0, -math.inf, tiny],
    }
    made = [
        torch.tensor(each, dtype=torch.float64, device=DEVICE).repeat_interleave(per_tile)
        for each in scales.values()
    ]

    assert_right([each.to(dtype) for each in made])


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "last"), [*((dtype, "large") for dtype in DTYPES), (torch.float32, math.inf)], ids=str
)
def test_a_program_goes_on_after_the_longest_segment(dtype: torch.dtype, last: Any) -> None:
    size = (MAX_TILES + 2) * TILE_BYTES // dtype.itemsize + 3
    limits = torch.finfo(dtype)
    tensor = torch.full((size,), limits.smallest_normal, dtype=dtype, device=DEVICE)
    tensor[-1] = limits.max / 4 if last == "large" else last

    assert_right([tensor[1:]], 1)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_as_many_programs_as_a_device_has_room_for_agree(dtype: torch.dtype) -> None:
    gradient = torch.randn(300_001, device=DEVICE).to(dtype)[1:]
    num_bytes = gradient.numel() * dtype.itemsize

    assert_right([gradient], num_programs(num_bytes, DeviceSize(multiprocessors=132)))


def test_a_device_is_given_no_more_programs_than_it_has_room_for() -> None:
    size = DeviceSize(multiprocessors=132)

    assert num_programs(1, size) == num_programs(TILE_BYTES, size) == 1
    assert num_programs(100 * TILE_BYTES, size) == 100
    assert num_programs(400 * TILE_BYTES, size) == 132
    assert num_programs(1 << 40, size) == 132 * PROGRAMS_PER_MULTIPROCESSOR


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kept", "other", "larger", "num_parts"),
    [
        pytest.param(1.0, 2.0, 2.0, 520, marks=pytest.mark.slow),
        (1.0, 2.0, 2.0, 3),
        (3.0, 2.0, 3.0, 3),
        (math.nan, 2.0, math.nan, 3),
        (2.0, math.nan, math.nan, 3),
        (math.inf, math.nan, math.nan, 3),
        (2.0, math.inf, math.inf, 3),
        (0.0, 0.0, 0.0, 3),
    ],
)
def test_of_several_passes_the_largest_norm_is_kept(
    kept: float, other: float, larger: float, num_parts: int
) -> None:
    parts = Parts([num_parts, num_parts, 2], DEVICE, SIZE)
    parts.measure(2, torch.full((4096,), 5.0, device=DEVICE))
    for place, number in enumerate((kept, other)):
        parts.measure(
            place,
            torch.full((TILE_BYTES // 4,), number / math.sqrt(TILE_BYTES // 4), device=DEVICE),
        )
    parts.keep_larger(0, 1)
    parts.combine()

    assert [float(norm) for norm in parts.norms] == pytest.approx(
        [larger, other, 320.0], nan_ok=True
    )


@pytest.fixture
def for_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for a GPU: the interpreter runs what hooks launch."""
    monkeypatch.setattr(norm_slots, "is_for_kernel", lambda _: True)
    monkeypatch.setattr(norms, "_refused", {})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was made of `Parts` with more than two places: only then is anything uploaded."""
    found: list[Any] = []
    init = Parts.__init__

    def note(parts: Parts, num_parts: Any, *given: Any) -> None:
        init(parts, num_parts, *given)
        if len(parts.num_parts) > 2:
            found.append(parts)

    monkeypatch.setattr(Parts, "__init__", note)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("for_all_devices")
def test_local_norms_and_blocks_are_measured_by_one_launch_each(
    aggregator: Sink, made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are those of the other path, and nothing is made again in the loop."""
    places: list[int] = []
    combined: list[Any] = []
    measure, combine = Parts.measure, Parts.combine

    def note(parts: Parts, place: int, tensor: Tensor) -> None:
        places.append(place)
        measure(parts, place, tensor)

    def note_combined(parts: Parts) -> None:
        combined.append(parts)
        combine(parts)

    monkeypatch.setattr(Parts, "measure", note)
    monkeypatch.setattr(Parts, "combine", note_combined)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)).to(DEVICE)
    watch = aggregator.attach(model, local=True, blocks=list(model))
    batch = torch.randn(3, 5, device=DEVICE)
    num_launches = []
    for _ in range(3):
        model.zero_grad()
        places.clear()
        combined.clear()
        model(batch).square().sum().backward()
        watch.collect()
        num_launches.append((len(places), len(combined)))
    stats = aggregator.stats(3)[2]
    l2 = aggregator.layers(stats)

    assert aggregator.layers(stats, "local_l2") == pytest.approx(l2, rel=1e-6)
    assert set(num_launches) == {(4 + 2, 2)}
    assert len(made) == 2
    assert watch.stats()["faults"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("for_all_devices")
def test_accumulated_passes_keep_the_largest_of_any_path(aggregator: Sink) -> None:
    weight = nn.Parameter(torch.zeros(4, 6, device=DEVICE))
    model = nn.ParameterList([weight])
    watch = aggregator.attach(model, local=True)
    wide = torch.ones(4, 12, device=DEVICE)
    for plain, strided in ((2.0, 1.0), (1.0, 3.0)):
        weight.grad = None
        weight.backward(torch.full((4, 6), plain, device=DEVICE))
        weight.backward(wide[:, ::2] * 1.0 if strided == 1.0 else (wide * strided)[:, ::2])
        weight.backward(torch.full((4, 6), 0.5, device=DEVICE))
        watch.collect()
    found = [aggregator.layers(stats, "local_l2")["0"] for stats in aggregator.stats(2)]

    assert found == pytest.approx([2 * math.sqrt(24), 3 * math.sqrt(24)])


@pytest.mark.slow
@pytest.mark.usefixtures("for_all_devices")
def test_room_grows_where_norms_are_taken(made: list[Any]) -> None:
    slots = NormSlots([Expected(DEVICE, DTYPES, 1)])
    large = torch.ones(5 * 4 * TILE_BYTES // 4, device=DEVICE)
    found = []
    for index, tensor in ((0, large), (3, large[:4]), (3, large[:9]), (0, large)):
        slots.keep(index, measure_norm(tensor, slots, index))
        found.append(float(slots.take([index])[index].square()))

    assert found == pytest.approx([len(large), 4, 9, len(large)])
    assert [len(parts.num_parts) for parts in made] == [8]
    wanted = num_programs(4 * len(large), SIZE), SIZE.multiprocessors
    assert made[0].num_parts == [wanted[0]] * 2 + [wanted[1]] * 4 + [1] * 2


@pytest.mark.slow
@pytest.mark.usefixtures("for_all_devices")
def test_a_number_that_is_kept_outlasts_the_memory_it_was_measured_in() -> None:
    slots = NormSlots([Expected(DEVICE, DTYPES, 1)] * 2)
    for index in (0, 1):
        slots.keep(index, measure_norm(torch.full((4,), 2.0, device=DEVICE), slots, index))
    slots.keep_larger(1, measure_norm(torch.ones(90_000, device=DEVICE), slots, 1))
    assert float(slots.take([1])[1]) == 300.0
    slots.keep_larger(0, measure_norm(torch.full((4,), 1.0, device=DEVICE), slots, 0))

    assert float(slots.take([0])[0]) == 4.0


@pytest.mark.usefixtures("for_all_devices")
def test_what_the_kernel_is_not_for_takes_the_other_path(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = NormSlots([Expected(DEVICE, [torch.float32])])
    plain = torch.ones(4, 4, device=DEVICE)
    odd = [plain[:, ::2], plain.to(torch.float8_e4m3fn), plain[:2].bfloat16()]
    tried: list[Any] = []
    monkeypatch.setattr(norms, "_try", lambda *given: tried.append(given))

    assert [measure_norm(each, slots, 0).parts for each in odd] == [None] * 3
    assert [float(measure_norm(each, slots, 0).number) for each in odd] == pytest.approx(
        [math.sqrt(8), 4.0, math.sqrt(8)]
    )
    assert measure_norm(plain, slots, 0).parts is not None
    assert not tried
    slots.take([])
    assert tried == [(DEVICE, torch.bfloat16)]


@pytest.mark.usefixtures("for_all_devices")
def test_where_a_launch_fails_the_other_path_is_taken_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cause is told once, by whoever asked."""

    def fail(*_: object) -> None:
        raise RuntimeError("no kernel image")

    told: list[str] = []
    factor = torch.tensor([3.0, 4.0], device=DEVICE)
    blocks = nn.Sequential(nn.Linear(2, 2)).to(DEVICE)
    with GradientGainMonitor(blocks, on_error=told.append) as monitor:
        monkeypatch.setattr(Parts, "measure", fail)
        for _ in range(3):
            monitor.reset()
            (blocks(torch.ones(1, 2, device=DEVICE)) * factor).sum().backward()
        assert monitor.norms() == [pytest.approx(5.0)]
    assert told == ["no kernel image"]
