"""Changes that people make while they train: layers, parameter groups, optimizers."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch_wire import Manifest
from tests.support.recording import Sink

pytestmark = pytest.mark.slow


def make() -> Any:
    torch.manual_seed(0)
    return nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, 2)})


def backward(model: Any, seed: int = 0) -> dict[str, float]:
    """A pass on fresh gradients; the true norms."""
    model.zero_grad()
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    out: Tensor = model["body"](x).tanh()
    for name in model:
        out = out if name == "body" else model[name](out)
    out.square().mean().backward()
    return {n: float(p.grad.norm()) for n, p in model.named_parameters() if p.grad is not None}


def sgd(*parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD([p for parameter in parameters for p in parameter], lr=0.1)


def close(expected: dict[str, float]) -> object:
    return pytest.approx(expected, rel=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["head", "assign"])
@pytest.mark.parametrize("optimized", [True, False])
def test_replaced_parameters_are_watched_under_their_names(
    aggregator: Sink, how: str, optimized: bool
) -> None:
    """A new head of another size, and all parameters by a checkpoint (C9)."""
    model = make()
    optimizer = sgd(model.parameters())
    watch = aggregator.attach(model, optimizer if optimized else None)
    true = []
    for step in range(4):
        if step == 2:
            if how == "head":
                model["head"] = nn.Linear(8, 5)
            else:
                model.load_state_dict(make().state_dict(), assign=True)
            optimizer.param_groups[0]["params"] = list(model.parameters())
            gc.collect()
        true.append(backward(model, step))
        watch.collect()
        optimizer.step()
    sent = aggregator.stats(4)

    assert [aggregator.layers(stats) for stats in sent] == [close(norms) for norms in true]
    assert [stats.step for stats in sent] == [0, 1, 2, 3]
    manifests = {m.manifest_id: m for m in aggregator.of(Manifest)}
    last = manifests[sent[-1].manifest_id]
    sizes = dict(zip(last.names, last.numel.unpack(), strict=True))
    assert sizes["head.weight"] == (40 if how == "head" else 16)


def test_a_layer_that_is_gone_is_not_reported(aggregator: Sink) -> None:
    model = make()
    watch = aggregator.attach(model)
    backward(model)
    watch.collect()
    del model["head"]
    true = backward(model)
    watch.collect()
    _, after = aggregator.stats(2)

    assert aggregator.layers(after) == close(true)
    assert set(true) == {"body.weight", "body.bias"}


def test_unfrozen_layers_of_a_new_parameter_group_are_watched(aggregator: Sink) -> None:
    """`add_param_group` for a body that was frozen (C43)."""
    model = make()
    model["body"].requires_grad_(False)
    optimizer = sgd(model["head"].parameters())
    aggregator.attach(model, optimizer)
    true = []
    for step in range(4):
        if step == 2:
            model["body"].requires_grad_(True)
            optimizer.add_param_group({"params": list(model["body"].parameters())})
        true.append(backward(model, step))
        optimizer.step()
    sent = aggregator.stats(4)

    assert [aggregator.layers(stats) for stats in sent] == [close(norms) for norms in true]
    assert len(true[3]) == 4


def test_layers_that_are_added_later_are_watched(aggregator: Sink) -> None:
    """A network that grows (C43)."""
    model = make()
    optimizer = sgd(model.parameters())
    watch = aggregator.attach(model, optimizer)
    true = []
    for step in range(4):
        if step == 2:
            model["more"] = nn.Linear(2, 3)
            optimizer.add_param_group({"params": list(model["more"].parameters())})
        true.append(backward(model, step))
        optimizer.step()
    sent = aggregator.stats(4)

    assert [aggregator.layers(stats) for stats in sent] == [close(norms) for norms in true]
    assert watch.stats()["faults"] == 0


def test_a_new_layer_that_no_optimizer_trains_is_told_once(
    aggregator: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not watched, and someone should know (C43)."""
    model = make()
    optimizer = sgd(model.parameters())
    aggregator.attach(model, optimizer)
    for step in range(4):
        if step == 2:
            model["more"] = nn.Linear(2, 3)
        backward(model, step)
        optimizer.step()
    sent = aggregator.stats(4)

    assert "more.weight" not in aggregator.layers(sent[3])
    assert caplog.text.count("more.weight and 1 more are new and in no optimizer") == 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_replaced_optimizer_is_watched(
    aggregator: Sink, caplog: pytest.LogCaptureFixture, kept: bool
) -> None:
    """The new one takes its place at its first step, whether or not the old one lives on (C43)."""
    model = make()
    optimizer: Any = sgd(model.parameters())
    old = [optimizer] if kept else []
    watch = aggregator.attach(model, optimizer)
    caplog.set_level(logging.INFO)
    true = []
    for step in range(5):
        if step == 2:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        true.append(backward(model, step))
        optimizer.step()
    sent = aggregator.stats(5)

    assert [aggregator.layers(stats) for stats in sent] == [close(norms) for norms in true]
    assert [stats.step for stats in sent] == [0, 1, 2, 3, 4]
    assert [stats.labels["taken"] for stats in sent] == [True] * 5
    assert [stats.scalars["lr"] for stats in sent][-3:] == [0.01] * 3
    assert caplog.text.count("another Adam has taken the place of optimizer 0") == 1
    assert watch.stats()["faults"] == 0
    assert len(old) == kept


def test_an_optimizer_within_the_watched_one_does_not_take_its_place(aggregator: Sink) -> None:
    class Outer(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.5})
            self.inner = torch.optim.SGD(self.param_groups, lr=0.1)

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.inner.step()

    model = make()
    optimizer = Outer(list(model.parameters()))
    aggregator.attach(model, optimizer)
    for step in range(3):
        backward(model, step)
        optimizer.step()
    sent = aggregator.stats(3)

    assert [stats.step for stats in sent] == [0, 1, 2]
    assert watch_is_on(optimizer)


def watch_is_on(optimizer: torch.optim.Optimizer) -> bool:
    return bool(optimizer._optimizer_step_pre_hooks)


def test_all_hooked_parameters_frozen(aggregator: Sink) -> None:
    model = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(40)])
    optimizer = sgd(model.parameters())
    watch = aggregator.attach(model, optimizer)
    hooked = [p for p in model.parameters() if p._post_accumulate_grad_hooks]
    assert 0 < len(hooked) < 40
    for parameter in hooked:
        parameter.requires_grad_(False)
    for _ in range(3):
        optimizer.zero_grad()
        sum(layer(torch.ones(1, 1)).sum() for layer in model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    sent = aggregator.stats(3)

    assert [stats.labels["point"] for stats in sent] == ["optimizer_step", "backward", "backward"]
    assert watch.stats()["faults"] == 0


def test_passes_that_reach_no_hooked_parameter_are_seen_from_the_second_on(
    aggregator: Sink,
) -> None:
    model = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(40)])
    optimizer = sgd(model.parameters())
    watch = aggregator.attach(model, optimizer)
    assert not model[5].weight._post_accumulate_grad_hooks
    for _ in range(3):
        optimizer.zero_grad()
        model[5](torch.ones(1, 1)).sum().backward()
        optimizer.step()
    sent = aggregator.stats(3)

    assert [stats.labels["point"] for stats in sent] == ["optimizer_step", "backward", "backward"]
    assert watch.stats()["faults"] == 0


def test_a_hook_of_the_script_that_writes_to_gradients_ends_no_step(aggregator: Sink) -> None:
    def clamp(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.clamp_(-1, 1)

    model = nn.Linear(4, 1)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(clamp)
    optimizer = sgd(model.parameters())
    aggregator.attach(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    assert [(stats.step, stats.labels["taken"]) for stats in aggregator.stats(3)] == [
        (0, True),
        (1, True),
        (2, True),
    ]


@pytest.mark.filterwarnings("ignore")
def test_steps_before_the_first_backward_pass(aggregator: Sink) -> None:
    """A distributed checkpoint steps with zeros to make the state: that is no step (C41)."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = nn.ModuleDict({"head": nn.Linear(8, 2), "body": nn.Linear(4, 8)})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    watch = aggregator.attach(model, optimizer)
    get_optimizer_state_dict(model, optimizer)
    for step in range(2):
        model.zero_grad()
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
        model["head"](model["body"](x).tanh()).square().mean().backward()
        optimizer.step()
    sent = aggregator.stats(2)

    assert [stats.step for stats in sent] == [0, 1]
    (manifest,) = aggregator.of(Manifest)
    assert manifest.order == "forward"
    assert manifest.names[0] == "body.weight"
    assert watch.stats()["faults"] == 0


def test_a_warm_up_step_does_not_cost_the_order(aggregator: Sink) -> None:
    """Gradients of zero, a step, and then training (C41)."""
    model = nn.ModuleDict({"head": nn.Linear(8, 2), "body": nn.Linear(4, 8)})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    aggregator.attach(model, optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    model.zero_grad()
    model["head"](model["body"](torch.ones(3, 4))).square().mean().backward()
    optimizer.step()
    aggregator.stats(2)

    assert [manifest.order for manifest in aggregator.of(Manifest)] == ["registration", "forward"]
    assert aggregator.of(Manifest)[1].names[0] == "body.weight"


def test_a_model_whose_tensors_are_swapped_is_still_watched(aggregator: Sink) -> None:
    """`model.double()` swaps them if torch is told to, and refuses to where weak references are."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    watch, optimizer = aggregator.attach_sgd(model)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        for dtype in (torch.float32, torch.float64):
            model.to(dtype)
            model(torch.ones(2, 4, dtype=dtype)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    watch.close()

    assert [stats.step for stats in aggregator.stats(2)] == [0, 1]


@pytest.mark.parametrize("replaced", [False, True])
def test_the_learning_rate_is_that_of_the_step(aggregator: Sink, replaced: bool) -> None:
    model = make()
    optimizer = sgd(model.parameters())
    aggregator.attach(model, optimizer)
    for rate in (0.1, 0.2, 0.3):
        backward(model)
        if replaced:
            optimizer = sgd(model.parameters())
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

    assert [stats.scalars["lr"] for stats in aggregator.stats(3)] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ((0.0, 0.1, 0.3), 0.3),  # a frozen group says nothing of the others
        ((0.0, 0.0, 0.0), 0.0),
        ((0.1, 0.3, 0.2), 0.1),
        ((0.0, torch.tensor(0.1), 0.2), None),  # on a GPU it would have to be waited for
    ],
)
def test_of_several_groups_the_rate_is_the_first_ones_or_else_the_largest(
    aggregator: Sink, rates: tuple[Any, ...], told: float | None
) -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in rates))
    groups = [
        {"params": list(layer.parameters()), "lr": rate}
        for layer, rate in zip(model, rates, strict=True)
    ]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    aggregator.attach(model, optimizer)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    (stats,) = aggregator.stats(1)

    assert stats.scalars.get("lr") == told
