"""The digest of tensors: equal for equal copies, another one for any element that is another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwatch._statistics.digest import digest, sum_of_bits
from gradwatch._statistics.digest_columns import join_bits

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def bits(tensor: Tensor) -> int:
    return int(sum_of_bits(tensor))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1001])
def test_each_element_counts(dtype: torch.dtype, size: int) -> None:
    tensor = random(size, dtype=dtype)
    for place in {0, size // 2, size - 1}:
        other = tensor.clone()
        integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()]
        other.view(integers)[place] += 1
        assert bits(other) != bits(tensor)
    zeros = torch.zeros(size, dtype=dtype)
    other = zeros.clone()
    other[size // 2] = -0.0
    assert bits(other) != bits(zeros)


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_same_wherever_the_elements_lie(dtype: torch.dtype) -> None:
    tensor = random(37, dtype=dtype)
    for offset in (1, 2, 3):
        buffer = torch.zeros(64, dtype=dtype)
        buffer[offset : offset + 37] = tensor
        assert bits(buffer[offset : offset + 37]) == bits(tensor)


def test_words_are_summed_modulo_2_to_the_64() -> None:
    tensor = random(1000, dtype=torch.float64)
    whole = sum(tensor.view(torch.int64).tolist()) % 2**64

    assert bits(tensor) % 2**64 == whole
    assert bits(tensor.flip(0)) % 2**64 == whole


def test_nothing_has_a_digest_too() -> None:
    """A parameter of which this process stores nothing."""
    assert bits(torch.zeros(0)) == 0
    assert bits(torch.zeros(3, 0)) == 0


def test_transposed_weights_are_read_where_they_lie() -> None:
    tensor = random(33, 17)

    assert bits(tensor.t()) == bits(tensor)


def test_both_halves_are_exact() -> None:
    weights = [random(1000), torch.full((2,), -1.0), random(5, 5, dtype=torch.bfloat16)]
    columns = {name: values.tolist() for name, values in digest(weights).items()}
    join_bits(columns)

    assert columns["weight_bits"] == [bits(weight) % 2**64 for weight in weights]
    assert columns["weight_linf"] == [float(weight.abs().max()) for weight in weights]
    norms = [float(weight.double().norm()) for weight in weights]
    assert columns["weight_l2"] == pytest.approx(norms, rel=1e-5)
    assert set(columns) == {"weight_l2", "weight_linf", "weight_bits"}
