"""The workloads: a class each, and a line here."""

from __future__ import annotations

from typing import Final

from benchmarks.alerts.training import Training
from benchmarks.alerts.workloads.click import Click
from benchmarks.alerts.workloads.cnn import Cnn
from benchmarks.alerts.workloads.control import PolicyGradient, TdLearning
from benchmarks.alerts.workloads.generative import Contrastive, Diffusion, Gan, Vae
from benchmarks.alerts.workloads.mlp import Mlp
from benchmarks.alerts.workloads.mlp_variants import (
    BatchOfOne,
    Jumps,
    MuonTrained,
    Resumed,
    Saturating,
    Scaled,
    ShortPrecision,
    SummedLoss,
    Thawed,
)
from benchmarks.alerts.workloads.recurrent import Lstm, RnnCounting
from benchmarks.alerts.workloads.transformer import Gpt
from benchmarks.alerts.workloads.transformer_variants import (
    Adafactored,
    CnnRestarted,
    GptScaled,
    Lora,
    MixtureOfExperts,
    Plain,
    Unnormalised,
    VitOnNoise,
)

_ALL: Final[tuple[type[Training], ...]] = (
    Mlp,
    Cnn,
    Gpt,
    BatchOfOne,
    SummedLoss,
    Saturating,
    ShortPrecision,
    Scaled,
    MuonTrained,
    Jumps,
    Resumed,
    Thawed,
    Lstm,
    RnnCounting,
    Plain,
    Unnormalised,
    Adafactored,
    GptScaled,
    Lora,
    MixtureOfExperts,
    VitOnNoise,
    CnnRestarted,
    Gan,
    Vae,
    Diffusion,
    Contrastive,
    PolicyGradient,
    TdLearning,
    Click,
)

WORKLOADS: Final[dict[str, type[Training]]] = {each.name: each for each in _ALL}
"""Name to workload."""
