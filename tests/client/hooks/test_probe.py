"""The local probe sees a NaN of its own rank, before a reduction spreads it."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradwatch_wire as wire
from gradwatch._faults import Faults
from gradwatch._hooks.probe import MAX_NUMEL, MAX_PARAMETERS, LocalProbe, choose
from gradwatch._layers.layers import find_layers
from gradwatch._recording.observer import Observer
from gradwatch._recording.step_sample import StepSample
from tests.support.recording import Sink

# Two ranks of DDP; rank 1 has a poisoned batch at step 2.
DDP_SCRIPT = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
import gradwatch

def work(rank, path):
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=2)
    model = nn.Sequential(nn.Linear(4, 600), nn.ReLU(), nn.Linear(600, 600), nn.Linear(600, 1))
    model = nn.parallel.DistributedDataParallel(model)
    with gradwatch.attach(model, run="ddp") as watch:
        for step in range(4):
            batch = torch.randn(8, 4)
            if rank == 1 and step == 2:
                batch[3, 1] = float("nan")
            model.zero_grad()
            model(batch).square().mean().backward()
            watch.collect()
    dist.destroy_process_group()

mp.start_processes(work, args=(sys.argv[1],), nprocs=2, start_method="fork")
"""


def sums(probe: Observer) -> list[Tensor]:
    sample = StepSample(step=0, manifest_id=1, layers=tuple(range(MAX_PARAMETERS + 1)))
    probe.contribute(sample)
    return sample.device_scalars.get("local_probe", [])


def layers_of(*sizes: int) -> Any:
    model = nn.ParameterList([nn.Parameter(torch.ones(size)) for size in sizes])
    return find_layers(model, None, None)


def sizes_of(parameters: list[nn.Parameter]) -> list[int]:
    return [parameter.numel() for parameter in parameters]


def test_few_small_parameters_are_all_chosen() -> None:
    """Large ones are left out: reading them again would cost time."""
    chosen = choose(layers_of(3, MAX_NUMEL + 1, 4, MAX_NUMEL, 5))

    assert sizes_of(chosen) == [3, 4, MAX_NUMEL, 5]


@pytest.mark.parametrize("count", [MAX_PARAMETERS + 1, 25, 31, 32, 148, 1000])
def test_of_many_the_chosen_are_spread_from_first_to_last(count: int) -> None:
    """Sixteen different ones, in order, the first and the last among them, evenly apart."""
    chosen = sizes_of(choose(layers_of(*range(1, count + 1))))
    steps = [after - before for before, after in itertools.pairwise(chosen)]

    assert len(chosen) == len(set(chosen)) == MAX_PARAMETERS
    assert (chosen[0], chosen[-1]) == (1, count)
    assert max(steps) - min(steps) <= 1


def test_where_all_are_large_the_smallest_is_chosen() -> None:
    chosen = choose(layers_of(MAX_NUMEL + 3, MAX_NUMEL + 1, MAX_NUMEL + 2))

    assert sizes_of(chosen) == [MAX_NUMEL + 1]


def test_frozen_parameters_are_not_chosen() -> None:
    layers = layers_of(3, 4)
    layers[0].parameter.requires_grad = False

    assert sizes_of(choose(layers)) == [4]
    layers[1].parameter.requires_grad = False
    assert choose(layers) == []


def sums_after(probe: LocalProbe, layers: Any, *gradients: Tensor) -> list[float]:
    total = torch.zeros(())
    for layer, gradient in zip(layers, gradients, strict=True):
        layer.parameter.grad = None
        total = total + (layer.parameter * gradient).sum().to(torch.float32)
    total.backward()
    return [float(value) for value in sums(probe)]


def test_the_sums_are_those_of_the_last_backward_pass() -> None:
    layers = layers_of(2, 3)
    probe = LocalProbe(layers, Faults())

    assert sums_after(probe, layers, torch.ones(2), torch.ones(3) * 2) == [2.0 + 6.0]
    assert sums_after(probe, layers, torch.ones(2), torch.ones(3)) == [2.0 + 3.0]
    assert sums(probe) == []
    probe.close()


@pytest.mark.parametrize("keep", [True, False], ids=["accumulated", "zeroed"])
def test_what_a_reduction_left_in_a_gradient_is_not_this_ranks(keep: bool) -> None:
    """The next pass adds to it; only what it adds is looked at (C13)."""
    layers = layers_of(2)
    parameter = layers[0].parameter
    probe = LocalProbe(layers, Faults())
    (parameter * 2.0).sum().backward()
    assert parameter.grad is not None
    parameter.grad.fill_(math.nan)  # the other rank's
    if not keep:
        parameter.grad.zero_()
    (parameter * 3.0).sum().backward()

    assert [float(value) for value in sums(probe)] == [10.0]
    probe.close()


def test_a_bad_pass_shows_after_a_good_one_that_adds_to_it() -> None:
    """Collected once for both."""
    layers = layers_of(2)
    probe = LocalProbe(layers, Faults())
    for factor in (math.nan, 1.0):
        (layers[0].parameter * factor).sum().backward()

    assert [math.isnan(value) for value in sums(probe)] == [True]
    probe.close()


def test_a_gradient_that_is_only_computed_is_none_of_a_pass() -> None:
    """`autograd.grad` reaches the hook before accumulation, and accumulates nothing."""
    layers = layers_of(2)
    parameter = layers[0].parameter
    probe = LocalProbe(layers, Faults())
    (parameter * 2.0).sum().backward()
    torch.autograd.grad((parameter * math.nan).sum(), parameter)
    assert [float(value) for value in sums(probe)] == [4.0]

    (parameter * 3.0).sum().backward()
    assert [float(value) for value in sums(probe)] == [6.0]
    probe.close()


@pytest.mark.slow
def test_a_model_is_freed_with_its_probe() -> None:
    """A hook that held its parameter would keep it for ever."""
    layers = layers_of(2)
    probe = LocalProbe(layers, Faults())
    gone = weakref.ref(layers[0].parameter)
    del probe, layers
    gc.collect()

    assert gone() is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_element_shows_in_the_sum(value: float) -> None:
    layers = layers_of(5)
    probe = LocalProbe(layers, Faults())
    gradient = torch.ones(5)
    gradient[3] = value

    assert not math.isfinite(sums_after(probe, layers, gradient)[0])
    probe.close()


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float16, 6e4), (torch.bfloat16, 3e38), (torch.float32, 3e38)]
)
def test_large_finite_gradients_do_not_pass_for_nonfinite(dtype: torch.dtype, value: float) -> None:
    parameter = nn.Parameter(torch.ones(MAX_NUMEL, dtype=dtype))
    layers = find_layers(nn.ParameterList([parameter]), None, None)
    probe = LocalProbe(layers, Faults())
    parameter.backward(torch.full((MAX_NUMEL,), value, dtype=dtype))
    (total,) = sums(probe)

    assert math.isfinite(float(total))
    assert float(total) == pytest.approx(MAX_NUMEL * value, rel=1e-2)
    probe.close()


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_large_float64_gradients_do_not_pass_for_nonfinite(bad: float | None) -> None:
    """C51: no sum of them is safe, nor one over several parameters; what is not finite shows."""
    parameters = [nn.Parameter(torch.ones(size, dtype=torch.float64)) for size in (100, 1, 7)]
    probe = LocalProbe(find_layers(nn.ParameterList(parameters), None, None), Faults())
    for parameter in parameters:
        gradient = torch.full_like(parameter, 1.7e308)
        if bad is not None and parameter is parameters[-1]:
            gradient[3] = bad
        parameter.backward(gradient)

    assert math.isfinite(sum(float(total) for total in sums(probe))) == (bad is None)
    probe.close()


def odd_models() -> dict[str, nn.Module]:
    """Models with a parameter whose gradient has no elements that torch could compare."""
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    return {
        "mkldnn": nn.ParameterList([torch.ones(3, 3).to_mkldnn(), torch.ones(3)]),
        "nested": nn.ParameterList([nested, torch.ones(3)]),
    }


def loss_of(odd: nn.Parameter) -> Tensor:
    """The sum of a parameter's elements, whose gradient is as odd as itself."""
    dense = torch.nested.to_padded_tensor(odd, 0.0) if odd.is_nested else odd.to_dense()
    return dense.sum()


@pytest.mark.usefixtures("rank_0_of_2")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["mkldnn", "nested"])
def test_a_gradient_that_cannot_be_looked_at_does_not_raise_into_backward(
    aggregator: Sink, kind: str
) -> None:
    """C22: with several ranks the probe looks at other parameters, and the record comes."""
    model = odd_models()[kind]
    odd, plain = model.parameters()
    watch = aggregator.attach(model)
    (loss_of(odd) + plain.sum()).backward()
    stats = aggregator.collected(watch)

    assert choose(find_layers(model, None, None)) == [plain]
    assert stats.scalars["local_probe"] == 3.0
    assert aggregator.layers(stats) == {"1": pytest.approx(math.sqrt(3))}


def test_a_gradient_that_became_odd_later_is_a_fault() -> None:
    """C22: whatever the hook meets, nothing is raised into the backward pass."""
    layers = layers_of(3)
    faults = Faults()
    probe = LocalProbe(layers, faults)
    parameter = layers[0].parameter
    parameter.data = torch.empty(0, dtype=torch.float64)  # nothing to compare
    parameter.sum().backward()

    assert sums(probe) == []
    assert faults.counts["local probe"] == 1
    probe.close()


def test_nothing_is_summed_while_it_is_not_active_or_after_close() -> None:
    """Steps that are not collected cost nothing."""
    layers = layers_of(2)
    probe = LocalProbe(layers, Faults())
    probe.active = False
    assert sums_after(probe, layers, torch.ones(2)) == []
    probe.active = True
    assert sums_after(probe, layers, torch.ones(2)) == [2.0]
    probe.close()
    assert sums_after(probe, layers, torch.ones(2)) == []


@pytest.mark.usefixtures("rank_0_of_2")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["collect", "optimizer step", "collect alone", "two optimizers"])
def test_backward_passes_of_steps_that_are_not_collected_are_not_probed(
    aggregator: Sink, how: str
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    parts = list(model) if how == "two optimizers" else [model]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]
    watch = aggregator.attach(model, None if how == "collect alone" else optimizers, every=3)
    (probe,) = watch._recorder.observed._observers
    probed = []
    for _ in range(7):
        for part, optimizer in zip(parts, optimizers, strict=True):
            probed.append(probe.active)
            part(torch.ones(1, 2)).sum().backward()
            if how.startswith("collect"):
                watch.collect()
            optimizer.step()
    sent = aggregator.stats(3 * len(parts))

    assert probed[:: len(parts)] == [True, False, False, True, False, False, True]
    assert [stats.scalars.get("local_probe") is not None for stats in sent] == [True] * len(sent)
    assert sums(probe) == []


def test_a_sparse_gradient_is_passed_over() -> None:
    """Summing it would coalesce it twice."""
    embedding = nn.Embedding(5, 2, sparse=True)
    probe = LocalProbe(find_layers(embedding, None, None), Faults())
    embedding(torch.tensor([1])).sum().backward()

    assert sums(probe) == []
    probe.close()


@pytest.mark.slow
def test_of_two_ddp_ranks_only_the_poisoned_one_shows_it(
    aggregator: Sink, run_script: Any, tmp_path: Any
) -> None:
    """The reduced gradients are NaN on both ranks; the probe is on the one where it began."""
    result = run_script(DDP_SCRIPT, tmp_path / "group")
    assert result.returncode == 0, result.stderr

    assert sorted(hello.rank for hello in aggregator.hellos.values()) == [0, 1]
    for session, hello in aggregator.hellos.items():
        records = [e.record for e in aggregator.stored if e.session == session]
        stats = [record for record in records if isinstance(record, wire.Stats)]
        norms = [norm for record in stats for norm in record.columns["l2"].unpack()]
        probes = [math.isfinite(record.scalars["local_probe"]) for record in stats]

        assert [record.step for record in stats] == [0, 1, 2, 3]
        assert {record.labels["reduction"] for record in stats} == {"mean"}
        assert [math.isfinite(norm) for norm in norms] == [True] * 12 + [False] * 6 + [True] * 6
        assert probes == [True, True, hello.rank == 0, True]
