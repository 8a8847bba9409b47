"""The CUDA kernel is right in Triton's interpreter, and is given what it can read and nothing else.

On a machine with a GPU the same tests run on it.
"""

from __future__ import annotations

import importlib
import itertools
import math
import mmap
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from gradwatch._statistics import cuda
from gradwatch._statistics.foreach import _foreach_norms
from gradwatch._statistics.statistics import cuda_statistics
from gradwatch_wire.columns import L2, MEASURED_COLUMNS

pytest.importorskip("triton")

from gradwatch._statistics.triton import addresses, reduce_kernel
from gradwatch._statistics.triton import plan as plans
from gradwatch._statistics.triton import statistics as kernel
from gradwatch._statistics.triton.reduce_kernel import MAX_TILES, TILE_BYTES

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:numpy|triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def reference(gradient: torch.Tensor) -> dict[str, float]:
    wide = gradient.double().abs().cpu()
    largest = wide[wide.isfinite()].amax().item() if wide.isfinite().any() else 0.0
    nans, infs = wide.isnan().sum().item(), wide.isinf().sum().item()
    if nans or infs:
        norms = [math.nan if nans else math.inf] * 3
    else:
        parts = wide / (largest or 1.0)
        norms = [
            parts.square().sum().sqrt().item() * largest,
            parts.sum().item() * largest,
            largest,
        ]
        norms = [min(norm, torch.finfo(torch.float64).max) for norm in norms]
    names = ("l2", "l1", "linf", "zeros", "nans", "infs")
    return dict(zip(names, [*norms, (wide == 0).sum().item(), nans, infs], strict=True))


def assert_right(*gradients: torch.Tensor) -> None:
    found = kernel.triton_statistics(gradients, MEASURED_COLUMNS)
    for place, gradient in enumerate(gradients):
        for name, expected in reference(gradient).items():
            close = pytest.approx(expected, rel=1e-5, abs=0, nan_ok=True)
            assert found[name][place].item() == close, (name, place)


def random_bits(size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    integers = BITS[dtype.itemsize]
    whole = torch.randint(-(1 << 62), 1 << 62, (size,), generator=made)
    return (whole << 1).to(integers).view(dtype).to(DEVICE)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_bits_at_any_offset_are_measured_right(dtype: torch.dtype) -> None:
    """Elements before the first multiple of 16 bytes, whole tiles, the rest, those behind it."""
    per_tile = TILE_BYTES // dtype.itemsize
    for seed, size in enumerate([1, 7, 15, per_tile - 1, per_tile, per_tile + 1, 3 * per_tile + 5]):
        bits = random_bits(size + 9, dtype, seed)
        finite = torch.where(bits.isfinite(), bits, torch.zeros((), dtype=dtype, device=DEVICE))
        ordinary = torch.randn(size + 9, device=DEVICE).to(dtype)
        ordinary[::5] = 0.0
        assert_right(
            *(each[offset:][:size] for each in (bits, finite, ordinary) for offset in (0, 3))
        )


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_tensors_are_put_together_right(dtype: torch.dtype) -> None:
    """Several programs, several segments, at an address that is no multiple of 16."""
    gradient = torch.randn(300_001, device=DEVICE).to(dtype)
    gradient[::7] = 0.0
    bad = gradient[:40_000].clone()
    bad[-1], bad[0] = math.inf, -math.inf

    assert_right(gradient[1:], bad)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float16, 65504.0),
        (torch.float16, 6e-8),
        (torch.bfloat16, 3e38),
        (torch.bfloat16, 1e-40),
        (torch.float32, 3e38),
        (torch.float32, 1e-23),
        (torch.float32, 1e-45),
        (torch.float64, 1.7e308),
        (torch.float64, 1e-200),
        (torch.float64, 5e-324),
    ],
    ids=str,
)
def test_sums_that_leave_the_range_are_made_again_in_float64(
    dtype: torch.dtype, value: float
) -> None:
    size = 5 * plans.MIN_TILES * TILE_BYTES // dtype.itemsize
    same = torch.full((size,), value, dtype=dtype, device=DEVICE)
    mixed = same.clone()
    mixed[: size // 2] = 1.0
    found = kernel.triton_statistics([same, mixed], MEASURED_COLUMNS)
    exact = float(same[0].double())
    largest = torch.finfo(torch.float64).max

    assert found["linf"].tolist() == [exact, max(exact, 1.0)]
    assert found["l1"][0].item() == pytest.approx(min(exact * size, largest), rel=1e-5, abs=0)
    assert found["l2"][0].item() == pytest.approx(
        min(exact * math.sqrt(size), largest), rel=1e-5, abs=0
    )
    both = min(math.hypot(exact * math.sqrt(size / 2), math.sqrt(size / 2)), largest)
    assert found["l2"][1].item() == pytest.approx(both, rel=1e-5)
    assert found["zeros"].tolist() == found["nans"].tolist() == found["infs"].tolist() == [0, 0]


@pytest.mark.slow
def test_a_float32_sum_does_not_drift_over_a_whole_segment() -> None:
    size = MAX_TILES * TILE_BYTES // 4
    gradient = torch.full((size,), 0.1, device=DEVICE)
    gradient[: TILE_BYTES // 4] = 1.0

    assert_right(gradient)


def test_zeros_are_not_measured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cuda":
        pytest.skip("the interpreter shows it")
    exact = []
    reduced = reduce_kernel._reduced

    def spy(*arguments: Any) -> Any:
        exact.append(arguments[-1])
        return reduced(*arguments)

    monkeypatch.setattr(reduce_kernel, "_reduced", spy)
    kernel.triton_statistics([torch.zeros(9000), torch.zeros(5)], MEASURED_COLUMNS)
    assert exact
    assert not any(exact)
    kernel.triton_statistics([torch.full((5,), 1e-30)], MEASURED_COLUMNS)
    assert any(exact)


@pytest.mark.parametrize(
    ("warp_size", "hip", "expected"),
    [(32, None, 32), (64, "6.4", 64), (32, "6.4", 32), (None, None, 32), (None, "6.4", 64)],
)
def test_a_program_has_as_many_threads_on_any_device(
    monkeypatch: pytest.MonkeyPatch, warp_size: int | None, hip: str | None, expected: int
) -> None:
    known = {"multi_processor_count": 304} | ({"warp_size": warp_size} if warp_size else {})
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(**known)
    )
    monkeypatch.setattr(torch.version, "hip", hip)
    size = plans.DeviceSize.of(torch.device("cuda", 0))

    assert size == plans.DeviceSize(304, expected)


def test_small_tensors_share_a_program() -> None:
    tensors, size = 2000, plans.DeviceSize(multiprocessors=10)
    small = plans.LaunchPlan([64] * tensors, [torch.float32] * tensors, DEVICE, size)
    (launch,) = small._launches

    assert launch.num_programs <= 10 * plans.PROGRAMS_PER_MULTIPROCESSOR
    assert small._num_split == 0  # nothing to combine


def test_a_large_model_has_some_programs_per_multiprocessor() -> None:
    size = plans.DeviceSize(multiprocessors=132)
    numels = [50_257 * 768, 1024 * 768] + [768, 768 * 2304, 2304, 768 * 768, 768, 768 * 3072] * 12
    large = plans.LaunchPlan(numels, [torch.float32] * len(numels), torch.device("cpu"), size)
    (launch,) = large._launches

    assert launch.num_programs <= 1.3 * 132 * plans.PROGRAMS_PER_MULTIPROCESSOR
    longest = max(
        last - first for _, first, last in large._split[: 3 * large._num_split].view(-1, 3).tolist()
    )
    assert longest <= 1024


def test_what_is_split_covers_each_element_once() -> None:
    numels = [0, 1, 2048, 2049, 10**6, 3 * 10**6 + 1, 2**31 + 5]
    made = plans.LaunchPlan(
        numels, [torch.bfloat16] * len(numels), torch.device("cpu"), plans.DeviceSize()
    )
    (launch,) = made._launches
    programs = made._programs[: launch.num_programs + 1].tolist()
    segments = made._segments[: 5 * programs[-1]].view(-1, 5).tolist()
    ends = dict.fromkeys(range(len(numels)), 0)
    for tensor, begin, end, numel, _ in segments:
        assert (begin, numel) == (ends[tensor], numels[tensor])
        assert begin % 8 == 0
        ends[tensor] = end

    assert programs == sorted(set(programs))
    assert list(ends.values()) == numels


HUGE = 2**31 + 5
"""Elements: of 2 bytes each they reach beyond what 32 bits count, in elements and in bytes."""


@pytest.fixture
def huge(tmp_path: Path) -> Iterator[torch.Tensor]:
    """A tensor of that size of which only what is written to takes memory."""
    if DEVICE.type == "cuda":
        if torch.cuda.mem_get_info()[0] < 3 * HUGE:
            pytest.skip("needs 6 GB of memory on the device")
        yield torch.zeros(HUGE, dtype=torch.bfloat16, device=DEVICE)
        return
    with (tmp_path / "huge").open("w+b") as file:
        file.truncate(2 * HUGE + 2)
        with mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
            made = torch.frombuffer(mapped, dtype=torch.bfloat16)
            yield made[1:]  # at an address that is no multiple of 16
            del made


@pytest.mark.exhaustive
@pytest.mark.slow
def test_elements_behind_the_2_to_the_31st_are_read_where_they_lie(
    huge: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [0, 2**30 - 1, 2**30, 2**31 - 1, 2**31, HUGE - 1]
    values = [3.0, 4.0, 12.0, 84.0, 132.0, 12.0]
    for place, value in zip(places, values, strict=True):
        huge[place] = value
    size = plans.DeviceSize.of(DEVICE)
    if DEVICE.type == "cpu":
        size = plans.DeviceSize(multiprocessors=1024)
    plan = plans.LaunchPlan([HUGE], [torch.bfloat16], DEVICE, size)
    (launch,) = plan._launches
    programs = plan._programs[: launch.num_programs + 1].tolist()
    segments = plan._segments[: 5 * programs[-1]].view(-1, 5).tolist()
    if DEVICE.type == "cpu":
        # Where vectors begin in memory decides which of two neighbours reads an element.
        needed = [
            number
            for number, (first, last) in enumerate(itertools.pairwise(programs))
            if any(
                begin - 16 <= place < end + 16
                for _, begin, end, *_ in segments[first:last]
                for place in places
            )
        ]
        assert len(places) // 2 <= len(needed) <= 2 * len(places)
        chosen = [plans._Launch("bf16", number, 1) for number in needed]
        monkeypatch.setattr(plan, "_launches", chosen)
        plan._partials.zero_()
        plan._partials[3] = torch.tensor(
            [
                0.0 if number in needed else end - begin
                for number, (first, last) in enumerate(itertools.pairwise(programs))
                for _, begin, end, *_ in segments[first:last]
            ],
            dtype=torch.float64,
        )
    found = plan.run([huge.data_ptr()])[:, 0].tolist()

    assert found == [
        pytest.approx(math.hypot(*values)),
        sum(values),
        max(values),
        HUGE - len(places),
        0.0,
        0.0,
    ]


@pytest.mark.slow
def test_what_is_written_lies_where_it_was_asked_for() -> None:
    buffer = torch.full((6, 10), -1.0, dtype=torch.float64, device=DEVICE)
    gradients = [torch.full((5,), 2.0, device=DEVICE), torch.ones(30_000, device=DEVICE)]
    found = kernel.triton_statistics(gradients, ("l1", "linf"), buffer[:, 3:5])

    assert buffer[:3, 3:5].tolist()[1:] == [[10.0, 30_000.0], [2.0, 1.0]]
    assert found["l1"].data_ptr() == buffer[1, 3:].data_ptr()
    assert (buffer[:, :3] == -1).all()
    assert (buffer[:, 5:] == -1).all()


@pytest.mark.slow
def test_addresses_are_uploaded_if_they_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Sequence[int]] = []
    send = addresses._Block.send

    def watched(block: Any, new: Sequence[int], to: torch.Tensor) -> None:
        sent.append(new)
        send(block, new, to)

    made: list[Any] = []

    class Watched(plans.LaunchPlan):
        def __init__(self, *given: Any) -> None:
            made.append(given)
            super().__init__(*given)

    assert not kernel.why_refused(DEVICE, torch.float32)  # which makes a plan of its own, once
    monkeypatch.setattr(addresses._Block, "send", watched)
    monkeypatch.setattr(kernel, "LaunchPlan", Watched)
    first = [torch.ones(1001, device=DEVICE), torch.full((77,), 2.0, device=DEVICE)]
    second = [gradient.clone() * 3 for gradient in first]
    norms = [
        kernel.triton_statistics(each, (L2,))[L2].square().tolist()
        for each in (first, first, second, first)
    ]

    assert len(made) == 1
    assert len(sent) == 3
    assert norms[0] == norms[1] == norms[3] == pytest.approx([1001, 308])
    assert norms[2] == pytest.approx([9009, 2772])


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type == "cuda", reason="uploads what are no addresses")
@pytest.mark.parametrize(("number", "room"), [(148, 512), (10_000, 8), (1_000_000, 4)])
def test_memory_for_addresses_is_bounded_and_nothing_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, number: int, room: int
) -> None:
    is_there: list[bool] = []
    monkeypatch.setattr(addresses._Block, "is_free", lambda block: bool(is_there))
    kept = addresses.Addresses(number, DEVICE)
    for step in range(room):
        kept.update([step] * number)
    for _ in range(3):
        with pytest.raises(addresses.BehindError, match=f"{room} collections behind"):
            kept.update([-1] * number)
    assert sum(len(block._hosts) for block in kept._blocks) == room
    assert room * 8 * number <= max(addresses.MAX_BYTES, addresses.MIN_UPLOADS * 8 * number)
    assert kept.on_device[0].item() == kept.latest[0] == room - 1
    is_there.append(True)
    kept.update([7] * number)

    assert sum(len(block._hosts) for block in kept._blocks) == room
    assert kept.on_device[-1].item() == 7


@pytest.mark.slow
@pytest.mark.usefixtures("undecided")
def test_a_device_that_is_far_behind_costs_one_record_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next path measures that one, rightly, and says so; then the kernel is back."""
    is_there: list[bool] = []
    monkeypatch.setattr(addresses._Block, "is_free", lambda block: bool(is_there))
    monkeypatch.setattr(addresses, "MAX_BYTES", 0)
    steps = [[torch.full((4,), float(n), device=DEVICE)] for n in range(10)]
    found = [cuda_statistics(gradients, (L2,)) for gradients in steps]
    is_there.append(True)
    found.append(cuda_statistics(steps[1], (L2,)))

    assert [each.values[L2].item() for each in found] == [2.0 * n for n in (*range(10), 1)]
    assert [each.path == "triton" for each in found] == [True] * 8 + [False] * 2 + [True]
    assert ["collections behind" in each.declined for each in found] == [
        each.path != "triton" for each in found
    ]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", ["meta", "cpu"])
def test_the_default_device_is_not_taken_for_the_host(elsewhere: str) -> None:
    """Under `torch.set_default_device` tables and results are where they are needed."""
    gradients = [torch.full((5,), 2.0, device=DEVICE), torch.ones(70_001, device=DEVICE)]
    with torch.device(elsewhere):
        found = cuda_statistics(gradients, MEASURED_COLUMNS)
        again = cuda_statistics([gradient * 2 for gradient in gradients], MEASURED_COLUMNS)

    assert {found.path, again.path, found.declined + again.declined} == {"triton", ""}
    assert found.values["l1"].tolist() == [10.0, 70_001.0]
    assert again.values["l1"].tolist() == [20.0, 140_002.0]


def test_a_block_is_not_written_before_its_copy_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device may be many steps behind: each copy then has memory of its own."""
    done: list[bool] = []
    monkeypatch.setattr(addresses._Block, "is_free", lambda block: bool(done))
    kept = addresses.Addresses(2, DEVICE)
    steps = range(1, 5 * addresses.MAX_UPLOADS + 1)
    for step in steps:
        kept.update([step, step])
        assert kept.on_device.tolist() == [step, step]
    assert len(kept._blocks) == 5
    sent = [host.tolist() for block in kept._blocks for host in block._hosts]
    assert sent == [[step, step] for step in steps]
    done.append(True)
    kept.update([7, 8])

    assert len(kept._blocks) == 5
    assert kept.on_device.tolist() == [7, 8]


def test_one_event_stands_behind_all_copies_from_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def is_free(block: Any) -> bool:
        asked.append(block.is_full)
        return True

    monkeypatch.setattr(addresses._Block, "is_free", is_free)
    for number in (2, addresses.BLOCK_BYTES):
        del asked[:]
        kept = addresses.Addresses(number, DEVICE)
        each = addresses.MAX_UPLOADS if number == 2 else 2
        for step in range(1, 3 * each + 1):
            kept.update([step] * number)
        assert asked == [True, True]
        assert len(kept._blocks) == 1


class Wrapper(torch.Tensor):
    """A tensor whose elements lie in another one; its own address is 0."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=held.dtype, device=held.device
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # as torch's documentation has it
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = tree_map(lambda x: x.held if isinstance(x, Wrapper) else x, args)
        return func(*given, **(kwargs or {}))


class OwnKind(torch.Tensor):
    """A kind of tensor with an address, of which nobody knows what lies there."""


def emptied() -> torch.Tensor:
    gradient = torch.ones(5, device=DEVICE)
    gradient.untyped_storage().resize_(0)
    return gradient


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(lambda: Wrapper(torch.ones(5, device=DEVICE)), id="wrapper"),
        pytest.param(emptied, id="emptied"),
        pytest.param(lambda: torch.ones(5, device=DEVICE).as_subclass(OwnKind), id="subclass"),
        pytest.param(lambda: torch.ones(4, 6, device=DEVICE)[:, ::2], id="gaps"),
        pytest.param(lambda: torch.ones(1, device=DEVICE).expand(9), id="expanded"),
        pytest.param(lambda: torch.ones(5, device=DEVICE).to(torch.float8_e4m3fn), id="float8"),
        pytest.param(lambda: torch.ones(5, device=DEVICE).to_sparse(), id="sparse"),
    ],
)
def test_the_kernel_is_given_nothing_that_it_cannot_read(
    odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorted out before the first launch, after plain ones of the same shape as well."""
    launched: list[object] = []
    plain = torch.ones(3, device=DEVICE)
    gradient = odd()
    kernel.triton_statistics([plain, torch.ones(5, device=DEVICE)], (L2,))
    monkeypatch.setattr(plans.LaunchPlan, "run", lambda *given: launched.append(given))

    with pytest.raises(kernel.UnreadableError):
        kernel.triton_statistics([plain, gradient], (L2,))
    assert not launched


@pytest.mark.parametrize("place", [0, 1, 3])
def test_an_odd_gradient_is_measured_apart(place: int) -> None:
    gradients = [torch.full((n,), float(n), device=DEVICE) for n in (1, 2, 3, 4)]
    gradients[place] = torch.full((5,), 2.0, device=DEVICE).to(torch.float8_e4m3fn)
    gradients[2] = torch.full((3, 4), 1.0, device=DEVICE)[:, ::2]
    found = cuda_statistics(gradients, MEASURED_COLUMNS)

    assert (found.path, found.declined) == ("triton", "")
    assert found.values["linf"].tolist() == [
        2.0 if n == place else (1.0 if n == 2 else n + 1.0) for n in range(4)
    ]
    assert found.values["l1"][2].item() == 6.0


def test_another_layout_of_the_same_size_is_seen() -> None:
    base = torch.arange(1.0, 33.0, device=DEVICE)
    whole = kernel.triton_statistics([base[:16]], MEASURED_COLUMNS)["l1"].item()
    halves = kernel.triton_statistics([base.half()[:16]], MEASURED_COLUMNS)["l1"].item()
    turned = kernel.triton_statistics([base[:16].view(4, 4).T], MEASURED_COLUMNS)["l1"].item()

    assert whole == halves == turned == 136.0
    assert not kernel.is_readable(base[::2])
    with pytest.raises(kernel.UnreadableError):
        kernel.triton_statistics([base[::2]], MEASURED_COLUMNS)


@pytest.mark.slow
@pytest.mark.usefixtures("undecided")
def test_sets_of_layers_that_take_turns_keep_their_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [
        [torch.ones(size, device=DEVICE) for size in sizes] for sizes in ([3, 4], [5, 6, 7], [8])
    ]
    made: list[Any] = []

    class Watched(plans.LaunchPlan):
        def __init__(self, *given: Any) -> None:
            made.append(given)
            super().__init__(*given)

    monkeypatch.setattr(kernel, "LaunchPlan", Watched)
    for _ in range(3):
        for gradients in sets:
            found = kernel.triton_statistics(gradients, ("l1",))["l1"]
            assert found.tolist() == [gradient.numel() for gradient in gradients]

    assert [given[0] for given in made if given[0] != [0]] == [[3, 4], [5, 6, 7], [8]]


def test_gradients_without_torchs_comparison_are_compared_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: object())
    is_same = kernel._comparison([torch.ones(4), torch.ones(2, 2)])

    assert is_same(torch.ones(4), torch.zeros(2, 2))
    for other in (
        torch.ones(5),
        torch.ones(8)[::2],
        torch.ones(4).half(),
        nn.Parameter(torch.ones(4)),
    ):
        assert not is_same(other, torch.ones(2, 2))


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_unusable", {})
    monkeypatch.setattr(kernel, "_refused", {})
    monkeypatch.setattr(kernel, "_plans", {})
    cuda._triton.cache_clear()


def test_a_dtype_that_is_refused_is_tried_once(
    undecided: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    warm_up = plans.LaunchPlan.warm_up

    def refuse(plan: plans.LaunchPlan) -> None:
        tried.append(plan._launches[0].format)
        if tried[-1] == "bf16":
            msg = "no C compiler"
            raise RuntimeError(msg)
        warm_up(plan)

    monkeypatch.setattr(plans.LaunchPlan, "warm_up", refuse)
    mixed = [torch.ones(4, device=DEVICE), torch.full((9,), 2.0, device=DEVICE).bfloat16()]
    for _ in range(3):
        found = cuda_statistics(mixed, (L2,))
        assert found.path == "triton"
        assert "no C compiler" in found.declined
        assert found.values[L2].tolist() == [2.0, 6.0]
    assert sorted(tried) == ["bf16", "fp32"]
    assert cuda_statistics(mixed[:1], (L2,)).declined == ""
    assert "no C compiler" in cuda.warm_up(DEVICE, [torch.bfloat16])


def test_without_triton_it_is_imported_once(
    undecided: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing import runs anew each time, which takes milliseconds."""
    tried = []

    def missing(name: str) -> None:
        tried.append(name)
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for _ in range(3):
        found = cuda_statistics([torch.ones(4, device=DEVICE)], (L2,))
        assert found.path in ("rows", "foreach")
        assert "ModuleNotFoundError" in found.declined
    assert len(tried) == 1


def test_memory_that_is_short_once_costs_one_record(
    undecided: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = plans.LaunchPlan.run
    gradients = [torch.ones(4, device=DEVICE)]
    cuda_statistics(gradients, (L2,))

    def short(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    monkeypatch.setattr(plans.LaunchPlan, "run", short)
    assert "out of memory" in cuda_statistics(gradients, (L2,)).declined
    monkeypatch.setattr(plans.LaunchPlan, "run", run)
    assert cuda_statistics(gradients, (L2,)).path == "triton"


def test_torchs_norm_of_many_makes_no_huge_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    order: list[int] = []

    def norm(some: list[torch.Tensor], *_: object, **__: object) -> list[torch.Tensor]:
        sizes.append(len(some) * -(-max(each.numel() for each in some) // 65_536) * 8)
        order.extend(each.numel() for each in some)
        return some

    monkeypatch.setattr(torch, "_foreach_norm", norm)
    numels = [1] * 5000 + [525_000_000] + [2] * 5000
    _foreach_norms([torch.empty(n, dtype=torch.bfloat16, device="meta") for n in numels], 2.0)

    assert order == numels
    assert max(sizes) <= 16 << 20
    assert len(sizes) <= 4
