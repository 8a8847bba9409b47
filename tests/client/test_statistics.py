"""The norms are right for every finite input, and say NaN, Inf and zero only when it is so."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwatch._statistics import CHUNK, ROW, SHORT, count_nonfinite, l2_norms

BRIEFLY = settings(max_examples=150, deadline=None)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SIZES = [1, ROW - 1, ROW, ROW + 1, SHORT, SHORT + 1, 3 * SHORT + 5, 200_000]
BITS = {torch.float16: 16, torch.bfloat16: 16, torch.float32: 32, torch.float64: 64}


def norms(*gradients: torch.Tensor) -> list[float]:
    """The norms of some gradients as Python floats."""
    values, path = l2_norms(gradients)
    assert (values.dtype, values.shape, path) == (torch.float64, (len(gradients),), "cpu_rows")
    found: list[float] = values.tolist()
    return found


def true_norm(gradient: torch.Tensor) -> float:
    """The norm by Python's own arithmetic, which neither overflows nor underflows."""
    return math.hypot(*gradient.reshape(-1).double().tolist())


def close(expected: float) -> object:
    """Equal within the promised 1e-5, however small the number is."""
    return pytest.approx(expected, rel=1e-5, abs=0)


@st.composite
def gradients(draw: st.DrawFn) -> torch.Tensor:
    """A finite tensor of any dtype, one random bit pattern in many places and a few others."""
    dtype = draw(st.sampled_from(DTYPES))
    integers = {16: torch.int16, 32: torch.int32, 64: torch.int64}[BITS[dtype]]
    bound = 1 << (BITS[dtype] - 1)
    patterns = draw(st.lists(st.integers(-bound, bound - 1), min_size=1, max_size=6))
    base = torch.tensor(patterns, dtype=integers).view(dtype)
    finite = torch.where(base.isfinite(), base, torch.zeros((), dtype=dtype))
    size = draw(st.sampled_from([*SIZES[:-1], 0, 2, 7]))
    gradient = finite[:1].repeat(size)
    for place, value in zip(draw(st.lists(st.integers(0, max(size - 1, 0)))), finite, strict=False):
        if size:
            gradient[place] = value
    return gradient


@BRIEFLY
@given(batch=st.lists(gradients(), min_size=1, max_size=4))
def test_the_norm_of_any_finite_tensor_is_right(batch: list[torch.Tensor]) -> None:
    """From subnormals to the largest float, in every dtype and mix of sizes, within 1e-5."""
    largest = sys.float_info.max

    assert [close(min(true_norm(gradient), largest)) for gradient in batch] == norms(*batch)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_norm_of_random_numbers_is_right(dtype: torch.dtype, size: int) -> None:
    """Ordinary gradients, at the sizes where the way of summing changes."""
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)

    assert norms(gradient) == [close(float(gradient.double().norm()))]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float16, 65504.0),
        (torch.float16, 6e-8),
        (torch.bfloat16, 3e38),
        (torch.bfloat16, 1e-38),
        (torch.float32, 3e38),
        (torch.float32, 1e20),
        (torch.float32, 1e-23),
        (torch.float32, 1e-45),
        (torch.float64, 1e300),
        (torch.float64, 1e-300),
        (torch.float64, 5e-324),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [1, ROW + 1, 200_000])
def test_extreme_magnitudes_are_measured_not_lost(
    dtype: torch.dtype, value: float, size: int
) -> None:
    """Squares that leave the range of the dtype make neither an Inf nor a zero of the norm."""
    gradient = torch.full((size,), value, dtype=dtype)
    exact = float(gradient[0].double())

    assert exact > 0
    assert norms(gradient) == [close(exact * math.sqrt(size))]


@pytest.mark.parametrize("size", [5, ROW, ROW + 1, 200_000])
@pytest.mark.parametrize("place", [0, -1])
def test_one_huge_number_among_tiny_ones_is_the_norm(size: int, place: int) -> None:
    """The huge one decides, wherever it stands."""
    gradient = torch.full((size,), 1e-30)
    gradient[place] = 2e38

    assert norms(gradient) == [close(float(gradient[place].double()))]


def test_a_norm_beyond_float64_is_the_largest_float() -> None:
    """An Inf would say that an element is infinite."""
    assert norms(torch.full((9,), 1.7e308, dtype=torch.float64)) == [sys.float_info.max]


def test_40_million_equal_numbers_do_not_drift() -> None:
    """A running sum in float32 is off by percents here."""
    gradient = torch.full((40_000_000,), 0.1)

    assert norms(gradient) == [close(float(gradient[0].double()) * math.sqrt(40_000_000))]


@pytest.mark.parametrize("shape", [(0,), (0, 16), (3, 0, 2)])
def test_the_norm_of_nothing_is_zero(shape: tuple[int, ...]) -> None:
    """An empty shard is neither an error nor a NaN."""
    assert norms(torch.empty(shape), torch.ones(4), torch.empty(shape)) == [0.0, 2.0, 0.0]


def test_a_scalar_has_its_magnitude_for_norm() -> None:
    """A parameter without dimensions is a layer like any other."""
    assert norms(torch.tensor(-3.0)) == [3.0]


@pytest.mark.parametrize("size", [40, 400])
def test_the_layout_in_memory_does_not_matter(size: int) -> None:
    """Transposed, strided and expanded gradients have the norm of their numbers."""
    square = torch.randn(size, size, generator=torch.Generator().manual_seed(1))
    views = [square.T, square[:, ::3], square[::2].T, square[:1].expand(size, size)]

    assert not any(view.is_contiguous() for view in views)
    assert [close(float(view.double().norm())) for view in views] == norms(*views)


def test_gradients_of_several_dtypes_and_sizes_keep_their_order() -> None:
    """Short and long ones are computed apart and put back into place."""
    kinds = [(20_000, torch.float32), (1, torch.float64), (30_000, torch.bfloat16)]
    kinds += [(7, torch.float16), (20_000, torch.float64), (2, torch.float32)]
    made = [
        torch.full((size,), float(number), dtype=dtype)
        for number, (size, dtype) in enumerate(kinds, start=1)
    ]
    expected = [n * math.sqrt(g.numel()) for n, g in enumerate(made, start=1)]

    assert [close(value) for value in expected] == norms(*made)


def test_the_gradients_are_left_as_they_are() -> None:
    """The exact path scales a copy, also in float64, where no conversion makes one."""
    gradient = torch.full((3000,), 1e300, dtype=torch.float64)
    norms(gradient)

    assert (gradient == 1e300).all()


@pytest.mark.parametrize("size", [1, 3, ROW, ROW + 1, 50_000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("filler", [0.0, 1.0, 6e4])
def test_the_norm_tells_nan_inf_and_zero(dtype: torch.dtype, size: int, filler: float) -> None:
    """NaN exactly with a NaN, Inf exactly with an Inf and no NaN, zero exactly if all are zero."""
    gradient = torch.full((size,), filler, dtype=dtype)
    with_nan, with_inf, with_both = gradient.clone(), gradient.clone(), gradient.clone()
    with_nan[size // 2] = math.nan
    with_inf[size // 2] = -math.inf
    with_both[0], with_both[-1] = math.inf, math.nan
    plain, nan, inf, both = norms(gradient, with_nan, with_inf, with_both)

    assert math.isfinite(plain)
    assert (plain == 0.0) == (filler == 0.0)
    assert math.isnan(nan)
    assert inf == math.inf
    assert math.isnan(both)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nonfinite_elements_are_counted(dtype: torch.dtype) -> None:
    """NaN and both infinities, over the boundaries of the chunks, by kind."""
    gradient = torch.ones(CHUNK + 10, dtype=dtype)
    gradient[[0, CHUNK - 1, CHUNK]] = math.nan
    gradient[1], gradient[-1] = math.inf, -math.inf

    assert count_nonfinite(gradient) == (3, 2)
    assert count_nonfinite(gradient.view(2, -1).T) == (3, 2)
    assert count_nonfinite(torch.ones(4, dtype=dtype)) == (0, 0)
    assert count_nonfinite(torch.ones(0, dtype=dtype)) == (0, 0)


def test_the_largest_finite_numbers_are_not_counted() -> None:
    """Overflow in a sum must not pass for an Inf element."""
    assert count_nonfinite(torch.full((5000,), torch.finfo(torch.float32).max)) == (0, 0)
