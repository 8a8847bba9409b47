"""What the recorder tells of how the training script uses it."""

from __future__ import annotations

from typing import Final

CHANGED: Final = (
    "gradients were changed between the end of the backward pass and collect(), which measured "
    "them anew: these norms may be after clipping; call collect() before it, or not at all"
)
UNSEEN: Final = (
    "no backward pass was seen before an optimizer's step, whose gradients were read as it began: "
    "these norms may be after clipping; call collect() before it"
)
NOT_OPEN: Final = (
    "called where no backward pass waits for its optimizer's step, and left out; "
    "call it between backward() and step()"
)
SEVERAL: Final = (
    "called several times in one optimizer step, which is one record with the last numbers; "
    "backward passes are measured without it"
)
