"""The collectors inside a compiled function: one graph, without a break, and the same numbers."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.collector import (
    SeedGradientCollector,
    collect_dual_gradients_async,
    collect_host_gradients_async,
    collect_seed_gradients_async,
    collect_seed_gradients_only_async,
    materialize_grad_stats,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def params_with(*gradients: Tensor) -> list[nn.Parameter]:
    params = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient
    return params


def numbers(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors as lists."""
    return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in stats.items()}


@pytest.mark.parametrize(
    "collect",
    [
        collect_seed_gradients_async,
        lambda params: collect_seed_gradients_async(iter(params), 0.5, 2.0),
        SeedGradientCollector().collect_async,
        collect_host_gradients_async,
        collect_seed_gradients_only_async,
        lambda params: collect_dual_gradients_async(params[:1], params[1:]),
        lambda params: collect_dual_gradients_async(params, [], "cpu"),
    ],
)
def test_every_collector_compiles_to_one_graph(collect: Callable[[Any], Any]) -> None:
    """`fullgraph` raises at the first break; the numbers are those of eager mode."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((8, 8), (3,), (0,), (70, 200))
    params = params_with(*(torch.randn(shape, generator=generator) for shape in shapes))
    compiled = torch.compile(collect, fullgraph=True, backend="aot_eager")

    expected = {
        key: value if isinstance(value, bool | int) else pytest.approx(value, rel=1e-6)
        for key, value in numbers(collect(params)).items()
    }
    assert numbers(compiled(params)) == expected


def test_without_gradients_it_compiles_as_well() -> None:
    """The neutral values."""
    params = [nn.Parameter(torch.zeros(2))]
    compiled = torch.compile(collect_seed_gradients_async, fullgraph=True, backend="aot_eager")

    assert compiled(params) == collect_seed_gradients_async(params)


def test_other_values_need_no_other_graph() -> None:
    """NaN, Inf, zeros and extremes take the same way as ordinary numbers."""
    from torch._dynamo.utils import counters

    compiled = torch.compile(collect_seed_gradients_async, fullgraph=True, backend="aot_eager")
    params = params_with(torch.ones(40), torch.ones(3))
    compiled(params)
    counters.clear()
    for value in (math.nan, math.inf, 0.0, 3e38, 1e-45):
        for param in params:
            assert param.grad is not None
            param.grad.fill_(value)
        assert str(numbers(compiled(params))) == str(numbers(collect_seed_gradients_async(params)))

    assert counters["stats"].get("unique_graphs", 0) == 0


@pytest.mark.exhaustive
@pytest.mark.sampled(1)
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float32, 3e38),
        (torch.float32, 1e-23),
        (torch.float16, 60000.0),
        (torch.float64, 1e300),
    ],
    ids=str,
)
def test_generated_code_is_as_exact(dtype: torch.dtype, value: float) -> None:
    params = params_with(*(torch.full((n,), value, dtype=dtype) for n in (3, 1000)))
    exact = float(torch.tensor(value, dtype=dtype).double())

    stats = torch.compile(collect_seed_gradients_async, fullgraph=True)(params)

    norms = [exact * math.sqrt(n) for n in (3, 1000)]
    assert stats["_all_norms"].tolist() == pytest.approx(norms, rel=1e-5, abs=0)
    total = materialize_grad_stats(stats)["gradient_norm"]
    assert total == pytest.approx(exact * math.sqrt(1003), rel=1e-5, abs=0)
