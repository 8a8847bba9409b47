"""Which runs rules may be tuned on, and which are only reported.

By seed and by model: seed 0 of most workloads is for tuning. All other seeds are reported, and so
are all seeds of the workloads that are held out: no rule has seen their like.
"""

from __future__ import annotations

from typing import Final

from benchmarks.alerts.recorded import Split

HELD_OUT: Final = frozenset(
    {
        "contrastive",
        "diffusion",
        "gan",
        "gpt_lora",
        "mlp_saturating",
        "policy_gradient",
        "rnn_counting",
        "vit_noise",
    }
)
"""Workloads of which no seed is for tuning; chosen before any of them was judged."""


def split_of(workload: str, seed: int) -> Split:
    """Return what a run is for."""
    return Split.TUNE if seed == 0 and workload not in HELD_OUT else Split.REPORT
