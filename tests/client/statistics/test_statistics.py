"""The numbers are right for every finite input on every path, and NaN, Inf and zero are true."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwatch._statistics.foreach import foreach_statistics, public_statistics
from gradwatch._statistics.gradients import CHUNK, count_nonfinite, flats
from gradwatch._statistics.rows import (
    BLOCK_ROWS,
    DIRECT_ROWS,
    MIN_NARROW,
    NORM_ROWS,
    WIDTH,
    row_statistics,
)
from gradwatch._statistics.statistics import Path, cuda_statistics, statistics
from gradwatch_wire.columns import MEASURED_COLUMNS

pytest.importorskip("triton")


def by_kernel(gradients: Sequence[torch.Tensor], columns: Sequence[str]) -> dict[str, torch.Tensor]:
    """The path of CUDA devices: on the GPU where there is one, or in Triton's interpreter."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = cuda_statistics([gradient.to(device) for gradient in gradients], columns)
    assert (found.path, found.declined) == ("triton", "")
    return found.values


def among_others(
    gradients: Sequence[torch.Tensor], columns: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Measure so many by rows that float32 is used, and rows of both widths."""
    others = [torch.ones(DIRECT_ROWS, WIDTH)[1:], *torch.ones(MIN_NARROW, 3).unbind()]
    found = row_statistics([*others, *gradients], columns)
    for name, expected in reference(torch.ones(3)).items():
        if name in columns:
            assert found[name][1 : len(others)].tolist() == [close(expected)] * MIN_NARROW
    return {name: values[len(others) :] for name, values in found.items()}


PATHS: dict[str, Path] = {
    "rows": row_statistics,
    "rows in float32": among_others,
    "triton": by_kernel,
    "foreach": foreach_statistics,
    "public": public_statistics,
}
BRIEFLY = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
TILE = 4096  # elements: what the kernel reads at once, in the longest of its ways
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LARGE = pytest.param(40_000, marks=pytest.mark.slow)  # in Triton's interpreter
SIZES = [1, WIDTH - 1, WIDTH, WIDTH + 1, TILE + 1, DIRECT_ROWS * WIDTH, LARGE]
BITS = {torch.float16: 16, torch.bfloat16: 16, torch.float32: 32, torch.float64: 64}

# The interpreter of Triton's kernels computes with numpy, which tells of what a GPU passes over.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:numpy|triton")


# Triton's interpreter takes its time; one test below that is not slow runs the kernel all the same.
SLOW_TRITON = pytest.param("triton", marks=pytest.mark.slow)


@pytest.fixture(params=[SLOW_TRITON if name == "triton" else name for name in PATHS])
def path(request: pytest.FixtureRequest) -> Path:
    return PATHS[request.param]


def columns(path: Path, *gradients: torch.Tensor) -> dict[str, list[float]]:
    values = path(gradients, MEASURED_COLUMNS)
    assert tuple(values) == MEASURED_COLUMNS
    for column in values.values():
        assert (column.dtype, column.shape) == (torch.float64, (len(gradients),))
    return {name: column.tolist() for name, column in values.items()}


def reference(gradient: torch.Tensor) -> dict[str, float]:
    """The six statistics by Python's own arithmetic, which neither overflows nor underflows."""
    numbers = [abs(x) for x in gradient.reshape(-1).double().tolist()]
    finite = [x for x in numbers if math.isfinite(x)]
    nans, infs = sum(map(math.isnan, numbers)), sum(map(math.isinf, numbers))
    norms = {"l2": math.hypot(*finite), "l1": _sum(finite), "linf": max(finite, default=0.0)}
    if nans or infs:
        norms = dict.fromkeys(norms, math.nan if nans else math.inf)
    else:
        norms = {name: min(value, sys.float_info.max) for name, value in norms.items()}
    return norms | {"zeros": numbers.count(0.0), "nans": nans, "infs": infs}


def _sum(numbers: list[float]) -> float:
    try:
        return math.fsum(numbers)
    except OverflowError:
        return math.inf


def close(expected: float) -> Any:
    """Equal within the promised 1e-5, however small the number is."""
    return pytest.approx(expected, rel=1e-5, abs=0, nan_ok=True)


def assert_right(path: Path, *gradients: torch.Tensor) -> None:
    found = columns(path, *gradients)
    for place, gradient in enumerate(gradients):
        for name, expected in reference(gradient).items():
            assert found[name][place] == close(expected), (name, place)


@st.composite
def gradients(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of any dtype, one random bit pattern in many places and a few others."""
    dtype = draw(st.sampled_from(DTYPES))
    integers = {16: torch.int16, 32: torch.int32, 64: torch.int64}[BITS[dtype]]
    bound = 1 << (BITS[dtype] - 1)
    patterns = draw(st.lists(st.integers(-bound, bound - 1), min_size=1, max_size=6))
    numbers = torch.tensor(patterns, dtype=integers).view(dtype)
    if draw(st.booleans()):
        numbers = torch.where(numbers.isfinite(), numbers, torch.zeros((), dtype=dtype))
    size = draw(st.sampled_from([0, 1, 2, 7, WIDTH - 1, WIDTH + 1, TILE + 1]))
    gradient = numbers[:1].repeat(size)
    places = draw(st.lists(st.integers(0, max(size - 1, 0)), max_size=6))
    for place, value in zip(places, numbers, strict=False):
        if size:
            gradient[place] = value
    return gradient


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PATHS if name != "triton"])
@BRIEFLY
@given(batch=st.lists(gradients(), min_size=1, max_size=4))
def test_any_tensor_is_measured_right(name: str, batch: list[torch.Tensor]) -> None:
    assert_right(PATHS[name], *batch)


def test_a_norm_just_below_the_threshold_stays_below_it() -> None:
    """Ten times 1e-8 in float32 is a little less than 1e-7, which float32 cannot tell apart."""
    norm = statistics([torch.full((100,), 1e-8)]).values["l2"].item()

    assert norm < 1e-7


@pytest.mark.slow
@settings(BRIEFLY, max_examples=15)
@given(batch=st.lists(gradients(), min_size=1, max_size=3))
def test_any_tensor_is_measured_right_by_the_kernel(batch: list[torch.Tensor]) -> None:
    """Fewer examples: the interpreter takes its time."""
    assert_right(PATHS["triton"], *batch)


@pytest.mark.slow
@pytest.mark.sampled(40)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_numbers_are_measured_right(path: Path, dtype: torch.dtype, size: int) -> None:
    """Ordinary gradients with some zeros, at the sizes where the way of summing changes."""
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    gradient[::7] = 0.0

    assert_right(path, gradient)


@pytest.mark.slow
@pytest.mark.sampled(50)
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float16, 65504.0),
        (torch.float16, 60000.0),
        (torch.float16, 6e-8),
        (torch.bfloat16, 3e38),
        (torch.bfloat16, 1e-38),
        (torch.float32, 3e38),
        (torch.float32, 1e20),
        (torch.float32, 1e10),
        (torch.float32, 3e-22),  # the square is there, and few of its digits
        (torch.float32, 1e-23),
        (torch.float32, 1e-38),
        (torch.float32, 1e-45),
        (torch.float64, 1e300),
        (torch.float64, 2e-162),
        (torch.float64, 1e-300),
        (torch.float64, 5e-324),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [1, WIDTH + 1, LARGE])
def test_extreme_magnitudes_are_measured_not_lost(
    path: Path, dtype: torch.dtype, value: float, size: int
) -> None:
    """Squares that leave the range of the dtype make neither an Inf nor a zero of the norm."""
    gradient = torch.full((size,), value, dtype=dtype)
    exact = float(gradient[0].double())
    found = columns(path, gradient)

    assert exact > 0
    assert found["l2"] == [close(exact * math.sqrt(size))]
    assert found["l1"] == [close(exact * size)]
    assert found["linf"] == [close(exact)]
    assert (found["zeros"], found["nans"], found["infs"]) == ([0.0], [0.0], [0.0])


@pytest.mark.parametrize("size", [5, WIDTH + 1, LARGE])
@pytest.mark.parametrize("place", [0, -1])
def test_one_huge_number_among_tiny_ones_is_the_norm(path: Path, size: int, place: int) -> None:
    """The huge one decides, wherever it stands."""
    gradient = torch.full((size,), 1e-30)
    gradient[place] = 2e38

    assert_right(path, gradient)


def test_a_norm_beyond_float64_is_the_largest_float(path: Path) -> None:
    """An Inf would say that an element is infinite."""
    found = columns(path, torch.full((9,), 1.7e308, dtype=torch.float64))

    assert found["l2"] == found["l1"] == [sys.float_info.max]
    assert found["infs"] == [0.0]


@pytest.mark.slow
def test_40_million_equal_numbers_do_not_drift() -> None:
    """A running sum in float32 is off by percents here."""
    gradient = torch.full((40_000_000,), 0.1)
    found = statistics([gradient], MEASURED_COLUMNS).values

    assert found["l2"].item() == close(float(gradient[0].double()) * math.sqrt(40_000_000))
    assert found["l1"].item() == close(float(gradient[0].double()) * 40_000_000)


@pytest.mark.parametrize("shape", [(0,), (0, 16), (3, 0, 2)])
def test_nothing_has_zero_of_everything(path: Path, shape: tuple[int, ...]) -> None:
    """An empty shard is neither an error nor a NaN."""
    found = columns(path, torch.empty(shape), torch.ones(4), torch.empty(shape))

    assert found["l2"] == [0.0, 2.0, 0.0]
    assert found["linf"] == [0.0, 1.0, 0.0]
    assert found["zeros"] == found["nans"] == [0.0, 0.0, 0.0]


def test_only_empty_tensors_are_measured_too(path: Path) -> None:
    """A rank may hold the empty shard of every layer."""
    assert columns(path, torch.empty(0), torch.empty(0, 3))["l2"] == [0.0, 0.0]


def test_a_scalar_has_its_magnitude_for_norm(path: Path) -> None:
    """A parameter without dimensions is a layer like any other."""
    assert_right(path, torch.tensor(-3.0))


@pytest.mark.parametrize("size", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_the_layout_in_memory_does_not_matter(path: Path, size: int) -> None:
    """Transposed, strided, unaligned and expanded gradients are what their numbers are."""
    square = torch.randn(size, size, generator=torch.Generator().manual_seed(1))
    views = [square.T, square[:, ::3], square[::2].T, square.T[::2], square[:1].expand(size, size)]
    views.append(square.view(-1)[1:])

    assert_right(path, *views)


def test_gradients_of_several_dtypes_and_sizes_keep_their_order(path: Path) -> None:
    kinds = [(40_000, torch.float32), (1, torch.float64), (30_000, torch.bfloat16)]
    kinds += [(7, torch.float16), (20_000, torch.float64), (2, torch.float32)]
    made = [
        torch.full((size,), float(number), dtype=dtype)
        for number, (size, dtype) in enumerate(kinds, start=1)
    ]

    assert_right(path, *made)


def test_many_small_tensors_share_blocks_of_rows() -> None:
    sizes = [1 + 37 * n % (3 * WIDTH) for n in range(3 * BLOCK_ROWS)]
    made = [torch.full((size,), float(n % 5)) for n, size in enumerate(sizes)]
    found = columns(row_statistics, *made)

    assert found["l2"] == [close(n % 5 * math.sqrt(size)) for n, size in enumerate(sizes)]
    assert found["zeros"] == [size if n % 5 == 0 else 0 for n, size in enumerate(sizes)]


def test_tensors_of_the_same_sizes_may_have_other_shapes_at_the_next_step() -> None:
    """Their places in a block are kept by size alone."""
    made = torch.arange(12.0)
    shapes = [(12,), (2, 6), (6, 2), (1, 12), (12, 1), (3, 2, 2), (12,)]
    views = [made.view(shape) for shape in shapes] + [torch.arange(24.0)[::2] / 2]

    found = [columns(row_statistics, view, torch.ones(2)) for view in views]
    assert found == [found[0]] * len(views)
    assert (found[0]["l1"], found[0]["zeros"]) == ([66.0, 2.0], [1.0, 0.0])


@pytest.mark.parametrize("first", [True, False])
def test_in_inference_mode_and_out_of_it_the_same_is_measured(first: bool) -> None:
    """Blocks that are kept for the next step are made in one of them, and written to in both."""
    sizes = (5, 131, DIRECT_ROWS * WIDTH + 7)

    def measured(mode: bool) -> list[float]:
        with torch.inference_mode(mode), torch.no_grad():
            found = row_statistics([torch.ones(size) for size in sizes], MEASURED_COLUMNS)
        return found["l1"].tolist()

    with ThreadPoolExecutor(1) as new_thread:  # which has no blocks yet
        for found in new_thread.map(measured, (first, not first, first)):
            assert found == list(sizes)


def test_threads_that_measure_at_once_do_not_meet() -> None:
    """Two watches of a process may have a thread each."""
    sizes = (100, 40_000, 3 * WIDTH)

    def measured(value: float) -> bool:
        gradients = [torch.full((size,), value) for size in sizes]
        expected = row_statistics(gradients, MEASURED_COLUMNS)["l1"]
        return all(
            torch.equal(row_statistics(gradients, MEASURED_COLUMNS)["l1"], expected)
            and expected.tolist() == [value * size for size in sizes]
            for _ in range(300)
        )

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(measured, (1.0, 3.0)))


def test_a_tensor_of_many_blocks_is_put_together() -> None:
    gradient = torch.ones(3 * NORM_ROWS * WIDTH + 5)
    gradient[:100] = 0.0

    assert columns(row_statistics, gradient)["zeros"] == [100.0]
    assert row_statistics([gradient], ["l2"])["l2"].item() ** 2 == close(gradient.numel() - 100)


def test_the_gradients_are_left_as_they_are(path: Path) -> None:
    """Scaling and magnitudes are those of a copy."""
    made = [torch.full((3000,), -1e300, dtype=torch.float64), torch.full((40_000,), -2.0)]
    columns(path, *made)

    assert (made[0] == -1e300).all()
    assert (made[1] == -2.0).all()


@pytest.mark.sampled(40)
@pytest.mark.parametrize("size", [1, 3, WIDTH + 1, LARGE])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("filler", [0.0, 1.0, 6e4])
def test_a_norm_tells_nan_inf_and_zero(
    path: Path, dtype: torch.dtype, size: int, filler: float
) -> None:
    """NaN exactly with a NaN, Inf exactly with an Inf and no NaN, zero exactly if all are zero."""
    gradient = torch.full((size,), filler, dtype=dtype)
    with_nan, with_inf, with_both = gradient.clone(), gradient.clone(), gradient.clone()
    with_nan[size // 2] = math.nan
    with_inf[size // 2] = -math.inf
    with_both[0], with_both[-1] = math.inf, math.nan
    found = columns(path, gradient, with_nan, with_inf, with_both)

    for name in ("l2", "l1", "linf"):
        plain, nan, inf, both = found[name]
        assert math.isfinite(plain)
        assert (plain == 0.0) == (filler == 0.0)
        assert math.isnan(nan)
        assert inf == math.inf
        assert math.isnan(both)
    assert found["nans"] == [0, 1, 0, 1]
    assert found["infs"] == [0, 0, 1, size > 1]
    assert found["zeros"] == [(size - n) * (filler == 0) for n in (0, 1, 1, 2 if size > 1 else 1)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nonfinite_elements_are_counted(dtype: torch.dtype) -> None:
    """NaN and both infinities, over the boundaries of the chunks, by kind."""
    gradient = torch.ones(CHUNK + 10, dtype=dtype)
    gradient[[0, CHUNK - 1, CHUNK]] = math.nan
    gradient[1], gradient[-1] = math.inf, -math.inf

    def counted(tensor: torch.Tensor) -> list[float]:
        return [count.item() for count in count_nonfinite(tensor)]

    assert counted(gradient) == [3, 2]
    assert counted(gradient.view(2, -1).T) == [3, 2]
    assert counted(torch.ones(4, dtype=dtype)) == [0, 0]
    assert counted(torch.ones(0, dtype=dtype)) == [0, 0]


@pytest.mark.parametrize(
    "asked", [("l2",), ("zeros",), ("linf", "l2"), ("nans", "infs"), MEASURED_COLUMNS]
)
def test_only_what_is_asked_for_is_given(path: Path, asked: tuple[str, ...]) -> None:
    gradient = torch.tensor([1.0, -2.0, 0.0, math.nan])
    found = path([gradient, gradient[:3]], asked)

    assert tuple(found) == asked
    everything = columns(path, gradient, gradient[:3])
    for name, values in found.items():
        assert values.tolist() == pytest.approx(everything[name], nan_ok=True)


def test_nan_and_inf_of_large_tensors_are_counted_without_magnitudes() -> None:
    gradients = list(torch.ones(3, 2 * DIRECT_ROWS * WIDTH + 3).unbind())
    gradients[0][[7, -1]], gradients[2][40_000] = math.nan, math.inf
    found = row_statistics(gradients, ("l2", "nans", "infs"))

    assert (found["nans"].tolist(), found["infs"].tolist()) == ([2.0, 0.0, 0.0], [0.0, 0.0, 1.0])
    assert found["l2"].tolist() == [close(math.nan), close(256.0058), math.inf]


def test_a_column_that_a_path_does_not_know_is_an_error(path: Path) -> None:
    with pytest.raises(KeyError, match="new"):
        path([torch.ones(3)], ("l2", "new"))


def test_no_gradients_make_empty_columns() -> None:
    """A model without any is the caller's to notice."""
    assert statistics([], MEASURED_COLUMNS).values["l1"].shape == (0,)


def test_flats_cover_a_tensor_without_gaps_and_without_a_copy_where_there_is_none() -> None:
    """Views for what lies densely, contiguous pieces for what does not."""
    dense = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)
    strided = torch.arange(24.0).view(4, 6).T[::2]

    (flat,) = flats(dense)
    assert flat.data_ptr() == dense.data_ptr()
    for tensor in (dense, strided, strided[:0]):
        pieces = list(flats(tensor))
        assert all(piece.is_contiguous() and piece.dim() == 1 for piece in pieces)
        assert sorted(torch.cat(pieces).tolist()) == sorted(tensor.reshape(-1).tolist())


def test_the_path_on_this_device_is_the_best_one() -> None:
    found = statistics([torch.ones(4)])

    assert (found.path, found.declined) == ("rows", "")
    assert found.values["l2"].tolist() == [2.0]


@pytest.fixture
def _flushing() -> Iterator[None]:
    """The CPU takes subnormal numbers for zero."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("_flushing")
@pytest.mark.parametrize("name", [name for name in PATHS if name != "triton"])
@pytest.mark.parametrize("size", [5, DIRECT_ROWS * WIDTH + 1])
@pytest.mark.parametrize(
    ("dtype", "subnormal", "normal"),
    [
        (torch.bfloat16, 1e-38, 2e-38),
        (torch.float32, 1e-38, 2e-38),
        (torch.float64, 2e-308, 4e-308),
    ],
)
def test_where_subnormals_are_flushed_they_are_zero_for_every_path(
    name: str, size: int, dtype: torch.dtype, subnormal: float, normal: float
) -> None:
    """C50: what the training computes with is zero, too; norms and counts agree on it."""
    gradient = torch.full((size,), subnormal, dtype=dtype)
    gradient[:2] = normal
    found = {column: numbers[0] for column, numbers in columns(PATHS[name], gradient).items()}

    assert found["l2"] == pytest.approx(normal * math.sqrt(2), rel=0.01)
    assert found["l1"] == pytest.approx(normal * 2, rel=0.01)
    assert found["zeros"] == size - 2
    gradient[:2] = 0.0
    nothing = {column: numbers[0] for column, numbers in columns(PATHS[name], gradient).items()}
    assert nothing == {column: float(size if column == "zeros" else 0) for column in nothing}


@pytest.mark.usefixtures("_flushing")
@pytest.mark.parametrize("name", [name for name in PATHS if name != "triton"])
def test_subnormals_of_float16_are_not_flushed(name: str) -> None:
    """C50: they are normal numbers of the wider types in which they are summed."""
    found = columns(PATHS[name], torch.full((4,), 6e-8, dtype=torch.float16))

    assert found["l2"][0] == pytest.approx(2 * 2.0**-24, rel=1e-5)
    assert found["zeros"] == [0.0]


def test_the_public_path_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `GRADWATCH_FOREACH=0` (row A9)."""
    monkeypatch.setenv("GRADWATCH_FOREACH", "0")

    assert statistics([torch.ones(4)]).path == "public"


@pytest.mark.parametrize("problem", ["missing", "refuses"])
def test_another_path_takes_over_and_says_why(
    monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    if problem == "missing":
        monkeypatch.delattr(torch, "_foreach_norm")
    gradient = torch.ones(4).to_sparse() if problem == "refuses" else torch.ones(4)
    monkeypatch.setattr("gradwatch._statistics.statistics.row_statistics", foreach_statistics)
    if problem == "refuses":
        with pytest.raises(NotImplementedError):  # the last path's own error, none is left
            statistics([gradient])
    else:
        found = statistics([gradient])
        assert found.path == "public"
        assert "_foreach_norm" in found.declined
        assert found.values["l2"].tolist() == [2.0]


@pytest.mark.slow
def test_a_graph_of_its_own_has_no_break() -> None:
    """`torch.compile(fullgraph=True)` takes the function whole, and exact (row A10)."""
    compiled = torch.compile(
        lambda gradients: statistics(gradients, MEASURED_COLUMNS).values,
        backend="eager",
        fullgraph=True,
    )
    made = [torch.full((2000,), 3e38), torch.full((5,), 1e-45), torch.randn(3, 4)]
    found = compiled(made)

    for place, gradient in enumerate(made):
        for name, expected in reference(gradient).items():
            assert found[name][place].item() == close(expected)
