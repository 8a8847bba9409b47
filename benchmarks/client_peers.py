"""What `client` compares: gradwatch, and the ways people get numbers of their gradients today.

Each is made ready for the gradients of one model, and is then a function without arguments. The
peers are the real packages. They are imported by name, so that the type checker does not read
them, and only by the process that measures them.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

import gradwatch
from benchmarks.client_cases import gradients_of
from benchmarks.harness import unused_endpoint
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import MEASURED_COLUMNS

Call: TypeAlias = Callable[[], Any]

RUN: Final = "bench-client"
NO_LIMIT: Final = 1e30
"""A `max_norm` that no gradient here reaches."""


def _floor(model: nn.Module, _stack: ExitStack) -> Call:
    gradients = gradients_of(model)
    return lambda: [gradient.sum() for gradient in gradients]


def _norms(model: nn.Module, _stack: ExitStack) -> Call:
    gradients = gradients_of(model)
    return lambda: statistics(gradients, ("l2",))


def _six(model: nn.Module, _stack: ExitStack) -> Call:
    gradients = gradients_of(model)
    return lambda: statistics(gradients, MEASURED_COLUMNS)


def _collect(model: nn.Module, stack: ExitStack) -> Call:
    watch = gradwatch.attach(model, run=RUN, endpoint=unused_endpoint())

    def close() -> None:
        watch.close()
        assert watch.stats()["faults"] == 0, watch.stats()

    stack.callback(close)
    return watch.collect


def _clip(model: nn.Module, _stack: ExitStack) -> Call:
    parameters = list(model.parameters())
    return lambda: nn.utils.clip_grad_norm_(parameters, NO_LIMIT)


def _masks(model: nn.Module, _stack: ExitStack) -> Call:
    gradients = gradients_of(model)
    return lambda: [
        (g.norm().item(), (g == 0).sum().item(), g.isnan().sum().item(), g.isinf().sum().item())
        for g in gradients
    ]


def _fused(model: nn.Module, _stack: ExitStack) -> Call:
    gradients = gradients_of(model)
    return lambda: torch._foreach_norm(gradients, 2.0, dtype=torch.float64)


class _HandOut(torch.autograd.Function):
    """A backward pass that computes nothing: it hands out the gradients that it was given."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *_parameters: Tensor) -> Tensor:
        """Return a loss that depends on the parameters."""
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_grad_outputs: Any) -> Any:
        """Return the gradients of the parameters; the list of gradients has none."""
        return None, *ctx.gradients


def _hand_out(model: nn.Module, _stack: ExitStack) -> Call:
    # grad() runs the hooks of the parameters as backward() does, without copying into `.grad`.
    parameters, gradients = list(model.parameters()), gradients_of(model)
    loss = partial(_HandOut.apply, gradients, *parameters)
    return lambda: torch.autograd.grad(loss(), parameters)


def _wandb(model: nn.Module, stack: ExitStack) -> Call:
    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwatch-bench-"))
    kinds = ("CACHE", "CONFIG", "DATA")
    os.environ |= {f"WANDB_{kind}_DIR": scratch for kind in kinds}
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    wandb: Any = import_module("wandb")
    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
    )
    session = wandb.init(mode="offline", dir=scratch, project=RUN, settings=settings)
    stack.callback(session.finish)
    # Its hooks must not fire in the pass without it.
    watched = nn.ParameterList(nn.Parameter(p.detach()) for p in model.parameters())
    for parameter, gradient in zip(watched, gradients_of(model), strict=True):
        parameter.grad = gradient
    wandb.watch(watched, log="gradients", log_freq=1)
    stack.callback(wandb.unwatch, watched)
    hand_out = _hand_out(watched, stack)

    def step() -> Any:
        hand_out()
        session.log({"loss": 0.0})  # commits the step, as each training loop does
        return session.summary

    return step


FLOOR, NORMS, SIX = "floor: sum() of each", "gradwatch norms", "gradwatch all six"
COLLECT, FUSED = "gradwatch collect(), attached", "one fused norm"
CLIP, MASKS = "clip_grad_norm_", "norm and three masks, .item()"
WANDB, HAND_OUT = "wandb.watch", "backward pass without it"

OWN: Final = (NORMS, SIX, COLLECT)
PEERS: Final = (CLIP, MASKS, WANDB)

VARIANTS: Final[dict[str, Callable[[nn.Module, ExitStack], Call]]] = {
    FLOOR: _floor,
    NORMS: _norms,
    SIX: _six,
    COLLECT: _collect,
    FUSED: _fused,
    CLIP: _clip,
    MASKS: _masks,
    HAND_OUT: _hand_out,
    WANDB: _wandb,
}


@contextlib.contextmanager
def ready(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Call]]:
    """Make the named variants ready for a model, and undo what they have set up."""
    with ExitStack() as stack:
        yield {name: VARIANTS[name](model, stack) for name in names}


TOTALS: Final[dict[str, Callable[[Any], float]]] = {
    NORMS: lambda found: float(found.values["l2"].norm()),
    SIX: lambda found: float(found.values["l2"].norm()),
    CLIP: float,
    MASKS: lambda rows: math.hypot(*(row[0] for row in rows)),
}
"""The norm over all gradients, out of what a variant returns."""


def check(results: dict[str, Any], num_gradients: int) -> None:
    """Assert that all of them have seen the same gradients."""
    totals = {name: total(results[name]) for name, total in TOTALS.items()}
    # Sums of large tensors in float32 drift by percents.
    assert max(totals.values()) < 1.05 * min(totals.values()), totals
    histograms = [name for name in results[WANDB].keys() if name.startswith("gradients/")]  # noqa: SIM118 - no dict
    assert len(histograms) == num_gradients, len(histograms)
