"""Compares two architectures: LayerNorm before each sublayer, or after it.

    python docs/examples/gains_pre_post_ln.py

Before (pre-LN), the residual path runs through untouched and each block adds to the gradient: it
grows on its way back. After (post-LN), each block's LayerNorm rescales the path itself, and the
gradient shrinks; the deeper, the more. Untrained, Xavier's weights, averages over some seeds.
"""

from __future__ import annotations

from statistics import fmean

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from gradwatch import GradientGainMonitor

WIDTH = 32
VOCABULARY = 100
SEEDS = 4


def measure(depth: int, pre: bool, seed: int) -> tuple[float, float, float]:
    """Return the norm at the first block over that at the last, the least and the largest gain."""
    torch.manual_seed(seed)
    blocks = nn.Sequential(
        *(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=pre)
            for _ in range(depth)
        )
    )
    for parameter in blocks.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    last = nn.LayerNorm(WIDTH) if pre else nn.Identity()  # pre-LN needs one at the end
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), blocks, last, nn.Linear(WIDTH, 100))
    tokens, targets = torch.randint(VOCABULARY, (2, 8, 16))
    with GradientGainMonitor(blocks) as monitor:
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    norms = [norm or 0.0 for norm in monitor.norms()]
    gains = [gain or 0.0 for gain in monitor.gains()]
    return norms[0] / norms[-1], min(gains), max(gains)


def main() -> None:
    """Print one line for each depth and architecture."""
    print("depth  norm     first/last  min gain  max gain")
    for depth in (6, 12, 24):
        for pre in (True, False):
            runs = [measure(depth, pre, seed) for seed in range(SEEDS)]
            ratio, least, largest = (fmean(values) for values in zip(*runs, strict=True))
            name = "pre-LN" if pre else "post-LN"
            print(f"{depth:5d}  {name:7}  {ratio:10.2f}  {least:8.2f}  {largest:8.2f}")


if __name__ == "__main__":
    main()
