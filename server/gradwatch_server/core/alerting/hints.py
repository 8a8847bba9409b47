"""Hints: what is often behind an alert of each rule. Heuristic: none is found in the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HINTS: Final[Mapping[str, tuple[str, ...]]] = {
    "nonfinite": (
        "float16 overflows above 65,504: a GradScaler, or bfloat16",
        "a division by zero, or the logarithm or root of zero, in the loss or in a normalisation",
        "a sample that is itself not finite",
    ),
    "exploding": (
        "the learning rate is too high, or its warm-up too short",
        "no clipping: torch.nn.utils.clip_grad_norm_",
        "no normalisation in a deep or recurrent model",
    ),
    "dead_layer": (
        "the layer's output is no longer used, or is detached",
        "its units are all saturated or switched off, such as ReLU below zero",
        "float16 rounds gradients below 6e-8 to zero without a GradScaler",
    ),
    "vanishing": (
        "depth without residual connections",
        "the initialisation: weights too small for the depth",
        "saturated activations, such as sigmoid and tanh far from zero",
    ),
    "layer_missing": (
        "it is no longer part of the forward pass, or its output is detached",
        "its weight is used as `.data` or `.detach()`, or under `torch.no_grad()`",
        "the layer was frozen, where the client is too old to say so",
    ),
    "loss": (
        "the learning rate is too high, or has just changed",
        "a batch unlike the others, or labels that do not belong to their inputs",
    ),
    "gain": (
        "the initialisation: each block scales what goes through it",
        "depth without residual connections or normalisation",
    ),
    "groups": (
        "the seed's output is scaled too small, or blocked from the loss",
        "the seed is detached from the host",
    ),
    "not_learning": (
        "the schedule has come to 0, or `scheduler.step()` is never called after a warm-up from 0",
        "the optimizer was made with a rate of 0, or another one steps the weights",
    ),
    "weights_unchanged": (
        "its parameter group has a learning rate of 0",
        "the optimizer was made before the model was wrapped, and steps other tensors",
        "updates lost to rounding: bfloat16 weights without float32 master copies",
    ),
    "not_zeroed": (
        "`optimizer.zero_grad()` is missing, or called on another optimizer or model",
        "`zero_grad()` is under a condition that micro-batches do not meet",
    ),
    "repeated_gradient": (
        "`backward()` is not called in each step, or on a loss that was made once",
        "the same batch again, and weights that do not move: look at the learning rate",
        "meant so: a benchmark that trains on one batch",
    ),
    "same_batch": (
        "the sampler is not distributed: DistributedSampler, or a seed per rank",
        "each rank reads all of the data in the same order",
        "meant so: one batch on purpose, or ranks that split a model and not the data",
    ),
    "rank_divergence": (
        "hardware: memory or a link that damages numbers",
        "missing synchronisation: no_sync, a step outside DDP, parameters changed on one rank only",
    ),
}
"""Name of a rule to what a person may look at first, the most frequent first."""


def hints_for(rule: str) -> tuple[str, ...]:
    """Return the hints for alerts of a rule, none of one that explains itself."""
    return HINTS.get(rule, ())
