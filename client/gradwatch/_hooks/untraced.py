"""Hooks that Dynamo leaves alone: they are neither traced into compiled code nor compiled."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch

T = TypeVar("T", bound=Callable[..., object])


def untraced(hook: T) -> T:
    """Mark a hook, which is a function of Python, and return it.

    `torch.compiler.disable` does the same by a wrapper that costs microseconds in each call. It
    takes over where torch has the names no more by which a function is marked.
    """
    mark = _mark_code()
    if mark is None or not isinstance(hook, FunctionType):
        disabled: T = torch.compiler.disable(hook)
        return disabled
    mark(hook.__code__)  # its frame and those of all that it calls are run as they are
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]  # a graph breaks before it
    return hook


def _mark_code() -> Callable[[Any], None] | None:
    """Return a function that lets Dynamo skip a code object and all that it calls."""
    try:
        from torch._C._dynamo.eval_frame import (  # noqa: PLC0415 - private, and may go
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )

        skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    except (ImportError, AttributeError, TypeError):
        return None
    return lambda code: set_code_exec_strategy(code, skip)
