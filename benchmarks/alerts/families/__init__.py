"""Families of trainings: a class each, and a line here."""

from __future__ import annotations

from typing import Final

from benchmarks.alerts.families.control import PolicyGradient, TdLearning
from benchmarks.alerts.families.generative import Contrastive, Diffusion, Gan, Minimax, Vae
from benchmarks.alerts.families.graphs import Communities
from benchmarks.alerts.families.language import (
    Gpt,
    GptPlain,
    GptWithoutNorm,
    Lora,
    MaskedTokens,
    MixtureOfExperts,
)
from benchmarks.alerts.families.perceptrons import (
    Click,
    Distillation,
    Physics,
    Regression,
    Residual,
    Saturating,
)
from benchmarks.alerts.families.pictures import (
    CnnBatchNorm,
    CnnGroupNorm,
    Denoiser,
    Mixer,
    VitOnNoise,
)
from benchmarks.alerts.families.recurrent import Counting, Frequencies, Lstm
from benchmarks.alerts.recipe import draw
from benchmarks.alerts.training import Training

_ALL: Final[tuple[type[Training], ...]] = (
    Regression,
    Residual,
    Click,
    CnnBatchNorm,
    CnnGroupNorm,
    Gpt,
    GptWithoutNorm,
    GptPlain,
    MixtureOfExperts,
    Lstm,
    Vae,
    TdLearning,
    Saturating,
    Physics,
    Distillation,
    VitOnNoise,
    Mixer,
    Denoiser,
    MaskedTokens,
    Lora,
    Counting,
    Frequencies,
    Gan,
    Diffusion,
    Contrastive,
    PolicyGradient,
    Communities,
    Minimax,
)

FAMILIES: Final[dict[str, type[Training]]] = {each.name: each for each in _ALL}
"""Name to family."""


def training_of(family: str, seed: int, steps: int | None = None) -> Training:
    """Return the training that the recipe of a family and a seed describes.

    Args:
        family: Key of `FAMILIES`.
        seed: Of the recipe.
        steps: Of the run, drawn if None.
    """
    kind = FAMILIES[family]
    return kind(draw(family, kind.options, seed, steps))
