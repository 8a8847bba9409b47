"""A few small tensors are summed as segments of one: as right as in any other way."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradwatch._statistics import rows
from gradwatch._statistics.segments import MAX_ELEMENTS, MAX_SEGMENTS, are_small
from gradwatch._statistics.statistics import statistics

COLUMNS = ("l2", "nans", "infs")
SIZES = [(1,), (3, 5), (64,), (7, 11), (2, 2, 2)]


def made(dtype: torch.dtype, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [(scale * torch.randn(size, generator=generator)).to(dtype) for size in SIZES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-40, 0.0])
def test_norms_are_those_of_float64(dtype: torch.dtype, scale: float) -> None:
    """Also where squares leave float32; what half precision cannot hold is Inf."""
    gradients = made(dtype, scale)
    found = statistics(gradients, COLUMNS)

    assert found.path == "rows"
    expected = [float(each.double().norm()) for each in gradients]
    assert found.values["l2"].tolist() == pytest.approx(expected, rel=1e-12)
    assert found.values["infs"].tolist() == [int(each.isinf().sum()) for each in gradients]
    assert found.values["nans"].tolist() == [0.0] * len(SIZES)


@pytest.mark.parametrize(("bad", "column"), [(math.nan, "nans"), (-math.inf, "infs")])
def test_what_is_not_finite_is_counted(bad: float, column: str) -> None:
    gradients = made(torch.float32)
    gradients[3].view(-1)[5] = bad
    values = statistics(gradients, COLUMNS).values

    assert values[column].tolist() == [0.0, 0.0, 0.0, 1.0, 0.0]
    assert values["l2"].isfinite().tolist() == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("gradients", "columns", "is_used"),
    [
        ([torch.ones(3)] * 6, COLUMNS, True),
        ([torch.ones(3).expand(4, 3)], ("l2",), True),
        ([torch.ones(3)] * 6, ("l2", "zeros"), False),
        ([torch.ones(3), torch.ones(3, dtype=torch.float64)], COLUMNS, False),
        ([torch.ones(3, dtype=torch.float64)], COLUMNS, False),
        ([torch.ones(3), torch.ones(3, dtype=torch.float16)], COLUMNS, False),
        ([torch.ones(3), torch.ones(0)], COLUMNS, False),
    ],
)
def test_other_tensors_and_columns_take_the_other_way(
    monkeypatch: pytest.MonkeyPatch,
    gradients: list[Tensor],
    columns: tuple[str, ...],
    is_used: bool,
) -> None:
    asked: list[object] = []
    tables = rows._table

    def table(*given: object) -> Tensor:
        asked.append(given)
        return tables(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(rows, "_table", table)
    values = statistics(gradients, columns).values

    assert bool(asked) is not is_used
    assert values["l2"].tolist() == pytest.approx([each.numel() ** 0.5 for each in gradients])


def test_limits() -> None:
    assert are_small((MAX_ELEMENTS,))
    assert are_small((1,) * MAX_SEGMENTS)
    assert not are_small((MAX_ELEMENTS, 1))
    assert not are_small((1,) * (MAX_SEGMENTS + 1))
    assert not are_small(())
