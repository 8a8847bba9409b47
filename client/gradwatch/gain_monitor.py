"""Growth of gradients from block to block, without the service.

Typical use::

    from gradwatch import GradientGainMonitor

    with GradientGainMonitor(model.blocks) as monitor:
        loss(model(batch)).backward()
        print(monitor.report())

`docs/gains.md` says what each number is and has examples that run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from gradwatch._collectors.norms import measure
from gradwatch._statistics.capture import is_capturing
from gradwatch._statistics.devices import pack, places_by_device, why_unsupported
from gradwatch._statistics.gradients import dense
from gradwatch._statistics.norm_slots import Expected, NormSlots
from gradwatch._statistics.single import measure_norm
from gradwatch_wire.columns import L1, L2
from gradwatch_wire.gains import (
    CATEGORIES,
    GAIN_EPS,
    NORM_TYPES,
    gain_category,
    gains,
    log_gains,
    summarize_gains,
)

_HEADING: Final = "Gradient Flow Analysis\n======================"

NOTHING_YET: Final = (
    "No gradients recorded: run a forward and a backward pass through the blocks first "
    "(reset() and take() forget what was recorded)."
)

NO_BLOCKS: Final = "No gradients recorded: the monitor was given no blocks."

_OUTPUT_KEYS: Final = ("hidden_states", "last_hidden_state")
"""Names of the hidden state in an output that has names, in the order of preference."""

Summary = dict[str, float | int | None]


class GradientGainMonitor:
    """Records the norm of the loss gradient at each block's output, and the gains between them.

    The norm of block i is that of ∂L/∂h_i, where h_i is the block's output. A gain is the norm of a
    block over that of the next one. During training the monitor only enqueues work on the device:
    the norms stay there until someone asks for numbers, which raises `RuntimeError` where no
    gradient was recorded.

    The gradient is this process's own, of the loss as `backward` got it: scaled by a `GradScaler`,
    of this rank's batch under DDP, of this rank's shard where the output is a DTensor. Gains do not
    change with the scale of the loss. Inside a CUDA graph capture nothing is recorded, nor in its
    replays.

    Args:
        blocks: Modules in the order of the forward pass: a list, `ModuleList` or `Sequential`, an
            empty one too.
        norm_type: `l2`, `l1`, `linf`, or `mean` (mean of |∂L/∂h_i| over the elements).
        strict_single_backward: A second backward without `reset()` raises `RuntimeError` out of
            `backward`. Otherwise it overwrites.
        eps: Norm of the later block below which a gain is Inf.
        on_error: Gets the message of whatever goes wrong in a hook, in place of an exception that
            would end the training step.

    Raises:
        ValueError: A block twice or on a device other than cpu and cuda, an unknown `norm_type`,
            an `eps` that is not a positive number.
        TypeError: `blocks` or one of them is something else.

    Attributes:
        active: Whether it records; set it to False for steps that need no numbers.
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        norm_type: str = L2,
        strict_single_backward: bool = True,
        eps: float = GAIN_EPS,
        *,
        on_error: Callable[[str], None] | None = None,
    ) -> None:
        modules = _checked(blocks)
        if norm_type not in NORM_TYPES:
            raise ValueError(f"norm_type must be one of {', '.join(NORM_TYPES)}, not {norm_type!r}")
        if not 0.0 < eps < math.inf:
            raise ValueError(f"eps must be a positive number, not {eps!r}")
        self.norm_type = norm_type
        self.eps = eps
        self._strict = strict_single_backward
        self._on_error = on_error
        self._closed = False
        self._classes = [type(module).__name__ for module in modules]
        self._norms = NormSlots(_expected(module, norm_type) for module in modules)
        self.active = True
        self._handles = [
            module.register_forward_hook(_OutputHook(self, index))
            for index, module in enumerate(modules)
        ]

    def __len__(self) -> int:
        return len(self._classes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the hooks; what was recorded can still be read. May be called again."""
        # A hook on an output that still waits for its backward pass looks at this.
        self._closed = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def reset(self) -> None:
        """Forget what was recorded."""
        self._norms.clear()

    def take(self) -> list[Tensor | None]:
        """Return the norms as they lie on the device, 0-d float64 each, and forget them.

        Never waits. None for a block where no gradient was recorded.
        """
        kept = self._norms.take(range(len(self)))
        indices = list(kept)
        taken: list[Tensor | None] = [None] * len(self)
        for places in places_by_device(list(kept.values())).values():
            mine = [indices[place] for place in places]
            # Copies: the next pass writes over the places where they are.
            norms = torch.cat([kept[index] for index in mine]).unbind()
            for index, norm in zip(mine, norms, strict=True):
                taken[index] = norm
        return taken

    def norms(self) -> list[float | None]:
        """Return the norm at each block, None where there is none; one transfer per device."""
        if not len(self._norms):
            raise RuntimeError(NOTHING_YET if len(self) else NO_BLOCKS)
        return _read(self._norms.kept(), len(self))

    def gains(self) -> list[float | None]:
        """Return the gain of each transition, norm of block i over norm of block i + 1.

        Inf where the later norm is below `eps`, None where a norm is missing or NaN.
        """
        return gains(self.norms(), self.eps)

    def log_gains(self) -> list[float | None]:
        """Return the natural logarithm of each gain, -Inf for a gain of zero."""
        return log_gains(self.gains())

    def summary_stats(self) -> Summary:
        """Return statistics of the gains.

        `mean_gain`, `min_gain`, `max_gain` and `mean_log_gain` are over the finite gains, None
        without one. `num_amplifying`, `num_damping`, `num_healthy`, `num_vanishing` and
        `num_missing` add up to the number of transitions.
        """
        return summarize_gains(self.gains())

    def report(self) -> str:
        """Return all numbers as text for a person; says so where nothing was recorded."""
        try:
            norms = self.norms()
        except RuntimeError as error:
            return f"{_HEADING}\n{error}\n"
        return _describe_flow(self._classes, self.norm_type, norms, gains(norms, self.eps))

    def after_forward(self, index: int, output: object) -> None:
        """Watch the output of a block that has just run."""
        # Reentrant checkpointing comes here without gradients first, then once more with them.
        if not (self.active and torch.is_grad_enabled()) or _in_capture():
            return
        with self._errors():
            tensor = _hidden_state(output)
            if tensor is None or tensor.is_complex():
                raise TypeError(
                    f"{self._name(index)} returned a {type(output).__name__} without a real tensor "
                    "to watch: it must be one, or a tuple, list, dict or model output with one"
                )
            if tensor.requires_grad:
                tensor.register_hook(partial(self._record, index))

    def _record(self, index: int, gradient: Tensor | None) -> None:
        """Enqueue the norm. PyTorch gives None where no gradient reached the output."""
        if gradient is None or self._closed or not self.active or _in_capture():
            return
        with self._errors():
            if self._strict and index in self._norms:
                raise RuntimeError(
                    f"the gradient hook of {self._name(index)} fired twice: call reset() after "
                    "each backward, or pass strict_single_backward=False to keep the last gradient "
                    "(a block that runs twice in one forward pass fires twice in one backward)"
                )
            if any(placement.is_partial() for placement in getattr(gradient, "placements", ())):
                raise TypeError(
                    f"the gradient of {self._name(index)} is a partial sum over ranks (a DTensor), "
                    "whose norm needs a collective: redistribute the block's output"
                )
            if self.norm_type == L2:
                norm = measure_norm(gradient, self._norms, index)
            else:
                norm = self._norms.spare(index, gradient.device)
                _write_norm(gradient, self.norm_type, norm.number)
            self._norms.keep(index, norm)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(str(error))

    def _name(self, index: int) -> str:
        return f"block {index} ({self._classes[index]})"


def _in_capture() -> bool:
    # Dynamo traces this where the model is compiled whole; there is no capture then.
    return not torch.compiler.is_compiling() and is_capturing()


class _OutputHook:
    """Hands a module's output to a monitor; copied or pickled with the module it does nothing."""

    def __init__(self, monitor: GradientGainMonitor | None = None, index: int = 0) -> None:
        self._monitor = monitor
        self._index = index

    def __call__(self, _module: nn.Module, _args: Any, output: object) -> None:
        if self._monitor is not None:
            self._monitor.after_forward(self._index, output)

    def __reduce__(self) -> tuple[type[_OutputHook], tuple[()]]:
        return _OutputHook, ()


def _checked(blocks: Iterable[nn.Module]) -> list[nn.Module]:
    if not isinstance(blocks, Iterable):
        kind = type(blocks).__name__
        raise TypeError(f"blocks must be a list, ModuleList or Sequential, not a {kind}")
    modules = list(blocks)
    first: dict[int, int] = {}
    for index, module in enumerate(modules):
        if not isinstance(module, nn.Module):
            raise TypeError(f"block {index} must be a module, not a {type(module).__name__}")
        if first.setdefault(id(module), index) != index:
            # Nothing tells which of its runs a gradient belongs to, least of all recomputation.
            raise ValueError(
                f"block {index} is the same module as block {first[id(module)]}: name each once"
            )
        if why := why_unsupported(device := _device_of(module)):
            raise ValueError(f"block {index} is on {device}; {why}")
    return modules


def _device_of(block: nn.Module) -> torch.device:
    """Return the device on which a block's output lies, as far as can be told before it runs."""
    parameter = next(block.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _expected(block: nn.Module, norm_type: str) -> Expected:
    """Return what a block's output is like, as far as can be told before it runs."""
    parameter = next(block.parameters(), None)
    if parameter is None:
        return Expected(_device_of(block))
    # With autocast it may be of a shorter type than the parameters.
    dtypes = {parameter.dtype, torch.bfloat16, torch.float16} if norm_type == L2 else ()
    return Expected(parameter.device, dtypes)


def _write_norm(gradient: Tensor, norm_type: str, slot: Tensor) -> None:
    """Write a norm other than L2 to a (1,) float64 tensor on the gradient's device."""
    stored = dense(gradient)
    if norm_type != "mean":
        slot.copy_(measure([stored], (norm_type,))[norm_type])
        return
    numel = gradient.numel() if gradient.is_sparse else stored.numel()
    slot.copy_(measure([stored], (L1,))[L1] / max(numel, 1))


def _read(norms: Mapping[int, Tensor], count: int) -> list[float | None]:
    """Return the number of each of so many blocks, None where there is none."""
    values: list[float | None] = [None] * count
    recorded = list(norms.items())
    for places in places_by_device([norm for _, norm in recorded]).values():
        numbers = pack([recorded[place][1] for place in places]).tolist()
        for place, number in zip(places, numbers, strict=True):
            values[recorded[place][0]] = number
    return values


def _hidden_state(output: object) -> Tensor | None:
    """Return the tensor that goes on to the next block, None if there is none."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, (tuple, list)):
        return next((value for value in output if isinstance(value, Tensor)), None)
    if isinstance(output, Mapping):
        named = [output.get(key) for key in _OUTPUT_KEYS]
        values: Iterable[object] = output.values()
    elif hasattr(output, "to_tuple"):
        named = [getattr(output, key, None) for key in _OUTPUT_KEYS]
        values = output.to_tuple()
    else:
        return None
    # Models that return the states of all their layers return them from first to last.
    lasts = (value[-1] if isinstance(value, (tuple, list)) and value else value for value in named)
    return next((value for value in (*lasts, *values) if isinstance(value, Tensor)), None)


def _describe_flow(
    classes: Sequence[str],
    norm_type: str,
    norms: Sequence[float | None],
    values: Sequence[float | None],
) -> str:
    """Return the report of `GradientGainMonitor`.

    Args:
        classes: Class of each block.
        norm_type: Which norm the norms are.
        norms: At each block's output.
        values: Gain of each transition.
    """
    summary = summarize_gains(values)
    blocks = enumerate(zip(norms, classes, strict=True))
    sizes = [key for key in summary if not key.startswith("num_")]
    return "\n".join(
        [
            _HEADING,
            f"{len(norms)} blocks, {norm_type} norm of the loss gradient at each block's output.",
            "\nGradient Norms:",
            *(f"  Block {i:2d}: {_shown(norm)}  {name}" for i, (norm, name) in blocks),
            "\nGradient Gains (norm of a block over that of the next; labels are heuristic):",
            *(
                f"  Transition {i:2d} to {i + 1:2d}: {_shown(gain)}  {gain_category(gain)}"
                for i, gain in enumerate(values)
            ),
            "\nSummary Statistics:",
            *(f"  {key.replace('_', ' '):13}: {_shown(summary[key])}" for key in sizes),
            "\nTransition Categories:",
            *(f"  {n:13}: {summary[f'num_{n}']:3d}  ({why})" for n, why in CATEGORIES.items()),
            "",
        ]
    )


def _shown(value: float | None) -> str:
    return f"{'missing' if value is None else format(value, '.4g'):>10}"
