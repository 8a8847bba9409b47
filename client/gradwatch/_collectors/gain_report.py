"""The report of a `GradientGainMonitor`, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradwatch_wire.gains import CATEGORIES, gain_category, summarize_gains

HEADING: Final = "Gradient Flow Analysis\n======================"


def describe_flow(
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
            HEADING,
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
