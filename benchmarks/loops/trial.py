"""One trial of a loop: with or without gradwatch, with one fault or none."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import gradwatch
from benchmarks.loops.fault import Fault, FaultKind, Injection
from benchmarks.loops.networks import Network
from benchmarks.loops.registry import Loop
from benchmarks.loops.truth import Note, Truth, named_parameters

STEPS: Final = 10
FAULT_STEP: Final = 5

T = TypeVar("T", bound=Optimizer)


@dataclass(frozen=True, slots=True)
class Variant:
    """Trial of a loop.

    Args:
        fault: What goes wrong.
        is_watched: Whether gradwatch is attached.
        tells_loss: Whether the further line that gives the loss is there.
    """

    fault: FaultKind
    is_watched: bool
    tells_loss: bool = False

    def __str__(self) -> str:
        """Return it as a part of run names."""
        how = ("watched" if self.is_watched else "bare") + ("-loss" if self.tells_loss else "")
        return f"{self.fault}-{how}"


VARIANTS: Final = (
    *(Variant(fault, is_watched) for fault in FaultKind for is_watched in (False, True)),
    Variant(FaultKind.NONE, is_watched=True, tells_loss=True),
)


class Trial:
    """Means of a loop to train with and without gradwatch.

    Attributes:
        steps: How many steps it is to take.
        rank: Of this process.
        fault: What goes wrong, where and when.
        is_watched: Whether gradwatch is to be attached.
        run: Under which name.
        truth: Where the loop notes what is true.
        watch: What `attach` returned, None before it and without gradwatch.
    """

    def __init__(self, loop: Loop, variant: Variant) -> None:
        self.steps = STEPS
        self.rank = int(os.environ.get("RANK", "0"))
        self.fault = Fault(variant.fault, FAULT_STEP, loop.ranks - 1)
        self.is_watched = variant.is_watched
        self.run = f"{loop.slug}-{variant}"
        self.truth = Truth()
        self.watch: Any = None
        self._tells_loss = variant.tells_loss
        self._injection = Injection(variant.fault)

    def attach(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        **settings: Any,
    ) -> None:
        """Call `gradwatch.attach`, or nothing in a trial without it."""
        if self.is_watched:
            self.watch = gradwatch.attach(
                model, optimizer, run=self.run, **({"every": 1} | settings)
            )

    def begin(self, kind: Callable[..., T], **settings: Any) -> tuple[Network, T]:
        """Return a watched network that may have the fault, and its optimizer."""
        model = Network()
        optimizer = kind(model.parameters(), **settings)
        self.inject(model, "blocks.1.down")
        self.attach(model, optimizer)
        return model, optimizer

    def end_pass(self, step: int, model: nn.Module, optimizer: Optimizer, loss: Tensor) -> Note:
        """Give the loss, and note what is true after a backward pass."""
        self.tell_loss(loss)
        return self.truth.step(step, model, optimizer, loss=loss)

    def inject(self, model: nn.Module, name: str, prefix: str = "") -> None:
        """Register the fault, if there is one, at a module that takes and returns one tensor.

        Args:
            model: The user's own, without wrappers.
            name: Name of the module in it, one with parameters of its own.
            prefix: What its layers' names begin with besides, such as `generator.`.
        """
        module = model.get_submodule(name)
        own = [key for key, _ in module.named_parameters(recurse=False)]
        self.fault.layers = tuple(f"{prefix}{name}.{key}" for key in own)
        if self.fault.kind is not FaultKind.NONE:
            self._injection.register(module)

    def at(self, step: int, *, here: bool = True) -> None:
        """Say before a forward pass which step it belongs to.

        Args:
            step: The step, from 0.
            here: Whether the fault may be in this pass, where a step has several.
        """
        fault = self.fault
        is_mine = fault.rank in (None, self.rank)
        self._injection.arm(on=here and is_mine and step == fault.step)

    def tell_loss(self, loss: Tensor | float) -> None:
        """Do what the further line does, in the trial that has it: give the loss."""
        if self._tells_loss:
            self.watch.annotate(loss=loss)


def run_trial(loop: Loop, variant: Variant) -> dict[str, Any]:
    """Run a loop once, and return what is known of it without gradwatch, as plain data."""
    trial, said = Trial(loop, variant), Said()
    torch.manual_seed(1)
    before = _compilations(reset=True)
    trained, error = None, ""
    with said:
        try:
            trained = loop.train(trial)
        except Exception as raised:
            if not variant.is_watched:
                raise
            error = repr(raised)
        finally:
            if trial.watch is not None:
                trial.watch.close()
    after = _compilations()
    return {
        "variant": str(variant),
        "run": trial.run,
        "fault": {"step": trial.fault.step, "rank": trial.fault.rank, "layers": trial.fault.layers},
        "notes": [note.to_json() for note in trial.truth.notes],
        "weights": {} if trained is None else digests(trained),
        "compiled": [now - then for now, then in zip(after, before, strict=True)],
        "said": said.lines,
        "error": error,
    }


def digests(model: nn.Module | Mapping[str, nn.Module]) -> dict[str, str]:
    """Return a digest of the bits of each parameter."""
    found = {}
    for name, parameter in named_parameters(model).items():
        whole = parameter.detach()
        own = whole.to_local() if hasattr(whole, "to_local") else whole
        data = own.contiguous().view(torch.uint8).numpy().tobytes() if own.numel() else b""
        found[name] = hashlib.sha256(data).hexdigest()[:16]
    return found


class Said(logging.Handler):
    """Messages that gradwatch logs while this is entered."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self._logger = logging.getLogger("gradwatch")
        self._logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname.lower()}: {record.getMessage()}")

    def __enter__(self) -> None:
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)


def _compilations(*, reset: bool = False) -> tuple[int, int]:
    """Return the graph breaks and the graphs that the compiler has made so far."""
    if "torch._dynamo" not in sys.modules:
        return 0, 0
    dynamo = sys.modules["torch._dynamo"]
    if reset:
        dynamo.reset()
    counters = dynamo.utils.counters
    return sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]
