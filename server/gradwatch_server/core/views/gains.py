"""The answer to `/runs/{run}/gains`, worked out from a frame of gains. Plain data."""

from __future__ import annotations

from typing import Any

from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_wire.gains import gain_category, log_gains, summarize_gains


def describe_gains(frame: GainFrame | None) -> dict[str, Any]:
    """Return what `/runs/{run}/gains` says of a step, nothing made up where there is none."""
    if frame is None:
        found: dict[str, Any] = {"step": None, "norm_type": None, "blocks": [], "transitions": []}
        return found | {"summary": summarize_gains(()), "ranks": []}
    blocks = zip(frame.blocks, frame.norms, frame.smallest, frame.largest, strict=True)
    transitions = zip(
        frame.blocks[:-1], frame.blocks[1:], frame.gains, log_gains(frame.gains), strict=True
    )
    return {
        "step": frame.step,
        "norm_type": frame.norm_type,
        "blocks": [
            {"name": name, "norm": norm, "min": smallest, "max": largest}
            for name, norm, smallest, largest in blocks
        ],
        "transitions": [
            {
                "from": early,
                "to": late,
                "gain": gain,
                "log_gain": log,
                "category": gain_category(gain),
            }
            for early, late, gain, log in transitions
        ],
        "summary": summarize_gains(frame.gains),
        "ranks": list(frame.ranks),
    }
