"""`attach(blocks=...)`: the gains of consecutive blocks, as GAINS records (row D8)."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from gradwatch import GradientGainMonitor
from gradwatch_wire import Gains
from tests.support.recording import Sink
from tests.support.waiting import wait_until


class Twin(nn.Module):
    """Returns no tensor."""

    def forward(self, _: Tensor) -> str:
        return "no tensor"


def make() -> tuple[nn.Sequential, nn.Sequential]:
    """A model with four named blocks."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    return nn.Sequential(OrderedDict(h=blocks, head=nn.Linear(4, 1))), blocks


def test_the_same_norms_as_the_monitors_are_sent(aggregator: Sink) -> None:
    model, blocks = make()
    watch = aggregator.attach(model, blocks=blocks)
    expected = []
    with GradientGainMonitor(blocks, strict_single_backward=False) as monitor:
        for step in range(3):
            model(torch.full((2, 4), step + 1.0)).square().mean().backward()
            expected.append(monitor.norms())
            watch.collect()
    # Each comes after the STATS of its step.
    wait_until(lambda: len(aggregator.of(Gains)) >= 3, "3 GAINS")
    sent = aggregator.of(Gains)

    assert [gains.step for gains in sent] == [0, 1, 2]
    assert {gains.blocks for gains in sent} == {("h.0", "h.1", "h.2", "h.3")}
    assert {gains.norm_type for gains in sent} == {"l2"}
    assert [gains.norms.unpack() for gains in sent] == [pytest.approx(n) for n in expected]


@pytest.mark.slow
def test_gains_are_collected_as_often_as_gradients(aggregator: Sink) -> None:
    """`every` holds for them too; what was not asked for is not sent later."""
    model, blocks = make()
    _, optimizer = aggregator.attach_sgd(model, blocks=list(blocks), every=2)
    for _ in range(4):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    aggregator.stats(2)

    wait_until(lambda: len(aggregator.of(Gains)) >= 2, "2 GAINS")
    assert [gains.step for gains in aggregator.of(Gains)] == [0, 2]


def test_the_loss_scale_is_divided_out(aggregator: Sink) -> None:
    """Gradients at the blocks' outputs carry it, also after `unscale_`."""
    model, blocks = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=4096.0)
    aggregator.attach(model, optimizer, blocks=blocks, scaler=scaler)
    with GradientGainMonitor(blocks) as monitor:
        scaler.scale(model(torch.ones(2, 4)).mean()).backward()
        scaled = [norm for norm in monitor.norms() if norm is not None]
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    aggregator.stats(1)
    wait_until(lambda: aggregator.of(Gains), "GAINS")  # they come after STATS
    (gains,) = aggregator.of(Gains)

    assert gains.norms.unpack() == pytest.approx([norm / 4096.0 for norm in scaled])


def test_a_block_without_a_tensor_is_told_once_and_training_goes_on(
    aggregator: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    model, blocks = make()
    odd = Twin()
    watch = aggregator.attach(model, blocks=[blocks[0], odd, blocks[1]])
    for _ in range(3):
        odd(torch.ones(1))
        model(torch.ones(2, 4)).mean().backward()
        watch.collect()
    aggregator.stats(3)
    wait_until(lambda: len(aggregator.of(Gains)) == 3, "3 GAINS")

    assert [math.isnan(norm) for norm in aggregator.of(Gains)[-1].norms.unpack()] == [
        False, True, False
    ]  # fmt: skip
    told = [record.message for record in caplog.records if "Twin" in record.message]
    assert len(told) == 1
    assert watch.stats()["faults"] == 3


def test_no_backward_through_the_blocks_makes_no_record(aggregator: Sink) -> None:
    model, blocks = make()
    watch = aggregator.attach(model, blocks=blocks)
    model[1](torch.ones(2, 4)).mean().backward()
    watch.collect()
    aggregator.stats(1)

    assert aggregator.of(Gains) == []


def test_closing_removes_the_hooks(aggregator: Sink) -> None:
    model, blocks = make()
    aggregator.attach(model, blocks=blocks).close()

    assert all(not block._forward_hooks for block in blocks)


def test_a_model_with_watched_blocks_can_be_saved_and_copied(
    aggregator: Sink, tmp_path: Any
) -> None:
    """The hooks on its modules go along as ones that do nothing."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    watch = aggregator.attach(model, blocks=model)
    torch.save(model, tmp_path / "m")
    loaded = torch.load(tmp_path / "m", weights_only=False)
    for other in (copy.deepcopy(model), loaded):
        other(torch.ones(1, 4)).sum().backward()
    watch.collect()
    assert watch.stats()["faults"] == 1  # no gradient: the copies have theirs
    assert aggregator.of(Gains) == []
    model(torch.ones(1, 4)).sum().backward()
    watch.collect()

    aggregator.stats(1)
    wait_until(lambda: aggregator.of(Gains), "the gains, which come after the statistics")
    assert len(aggregator.of(Gains)) == 1
