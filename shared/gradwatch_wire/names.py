"""Names on the wire beside the columns: scalars, labels, events; and the default addresses.

Client and aggregator use these names and nothing else; `docs/statistics.md` explains each, and a
test compares the two.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final


class Scalar(StrEnum):
    """A number of the whole step in STATS."""

    LOSS = "loss"
    BATCH_SIZE = "batch_size"
    LR = "lr"
    LOSS_SCALE = "loss_scale"
    STEP_TIME_S = "step_time_s"
    LOCAL_PROBE = "local_probe"
    COLLECTIONS = "collections"
    FIRST_NONFINITE_STEP = "first_nonfinite_step"
    FIRST_NONFINITE_LOSS = "first_nonfinite_loss"
    NONFINITE_MODULE = "nonfinite_module"
    NONFINITE_MODULE_STEP = "nonfinite_module_step"


class Label(StrEnum):
    """Kind of the numbers of a STATS record."""

    POINT = "point"
    SCALED = "scaled"
    REDUCTION = "reduction"
    PATH = "path"
    TAKEN = "taken"
    CARRIED = "carried"


class SilentBug(StrEnum):
    """Bugs that look healthy, and may be meant so: names of the rules about their signs."""

    NOT_LEARNING = "not_learning"
    WEIGHTS_UNCHANGED = "weights_unchanged"
    NOT_ZEROED = "not_zeroed"
    REPEATED_GRADIENT = "repeated_gradient"
    SAME_BATCH = "same_batch"


class Point(StrEnum):
    """Values of the label `point`: where in the training step the gradients were read."""

    BACKWARD = "backward"
    COLLECT = "collect"
    OPTIMIZER_STEP = "optimizer_step"


class Inspection(IntEnum):
    """Values of the column `looked_at` of a history: how closely a step was inspected."""

    NONE = 0
    BY_SENTINEL = 1
    IN_FULL = 2


class Reduction(StrEnum):
    """Values of the label `reduction`: what was done to the gradients across ranks."""

    MEAN = "mean"
    NONE = "none"
    UNKNOWN = "unknown"


class Mark(StrEnum):
    """Values of `marks` in a manifest: how a layer lies on the ranks, as its parameter says."""

    TENSOR = "tensor"
    EXPERT = "expert"
    SHARED = "shared"


class Dimension(StrEnum):
    """Keys of `meshes` in a manifest: dimensions in which a job is parallel."""

    PIPELINE = "pipeline"
    TENSOR = "tensor"
    EXPERT = "expert"
    EXPERT_TENSOR = "expert_tensor"
    CONTEXT = "context"
    DATA = "data"


class LayerOrder(StrEnum):
    """In which order a manifest lists the layers."""

    FORWARD = "forward"
    REGISTRATION = "registration"


class EventName(StrEnum):
    """Names of EVENT records that gradwatch itself sends."""

    SKIPPED_STEP = "skipped_step"
    STACK = "stack"
    PACE = "pace"


INGEST_PORT: Final = 5555
HTTP_PORT: Final = 8420
DEFAULT_ENDPOINT: Final = f"tcp://127.0.0.1:{INGEST_PORT}"
"""Endpoint to which clients send records."""
DEFAULT_HTTP: Final = f"127.0.0.1:{HTTP_PORT}"
"""Address at which the aggregator answers HTTP."""
