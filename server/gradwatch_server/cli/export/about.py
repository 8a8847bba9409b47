"""Description of an export: its run, its parts, and all that a reader of the files has to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gradwatch_server.core.frames.rows import FRAME_COLUMNS
from gradwatch_server.curves.columns import RUN_COLUMNS

RUN_NAMES: Final = tuple("step_time_s" if one == "step_time" else one for one in RUN_COLUMNS)
"""Names of a step's numbers in files: `RUN_COLUMNS`, with their units."""

EXPORTED_AT: Final = "exported_at"
"""The fact that is another one each time: what is exported twice is otherwise the same."""

UNITS: Final[Mapping[str, str]] = {
    "time": "when the last record of the step came in, UTC",
    "norm": "L2 norm of the gradients of all layers",
    "loss": "mean over the ranks that gave one",
    "lr": "learning rate, the largest that a rank gave",
    "loss_scale": "scale of the GradScaler; gradients are recorded without it",
    "step_time_s": "seconds, the largest that a rank gave",
    "noise_scale": "samples",
    "score": "health score, 0 to 1",
    "coverage": "share of the ranks that are in the step",
    "skipped": "whether a GradScaler skipped the step",
    "l2": "L2 norm of the layer's gradient",
    "l1": "sum of the magnitudes",
    "linf": "largest magnitude",
    "zeros": "elements that are zero",
    "nans": "elements that are NaN",
    "infs": "elements that are infinite",
    "update_rms": "root mean square of what the optimizer's step added to the weights, of a sample",
    "weight_rms": "root mean square of the weights, of the same sample",
    "unchanged": "share of the sample that the step did not change",
    "numel": "elements of the layer",
}

NULLS: Final = (
    "A value that is missing (null, in CSV an empty field) was not measured or is not known: a "
    "layer was absent from the step, a rank gave none, or shards of it were missing. NaN and "
    "infinite values are values."
)

BUCKETS: Final = (
    "Steps of which single ones are not kept any more are in the tables *_buckets: min, max, mean "
    "and last of the finite values, n steps with a value, and how many were nan, inf, zero, or not "
    "finite in a skipped step. The last bucket before single steps may have some of these in it."
)


Layer = Mapping[str, Any]
"""A layer as `/runs/{run}/layers` shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSelection:
    """Parts of a run that are wanted.

    Args:
        last: The last step, None for all.
        layers: Pattern of the layers, None for none.
    """

    first: int = 0
    last: int | None = None
    layers: str | None = "*"
    columns: Sequence[str] = FRAME_COLUMNS

    @property
    def is_all(self) -> bool:
        return self.first == 0 and self.last is None

    def plain(self) -> dict[str, Any]:
        return {
            "from": self.first,
            "to": self.last,
            "layers": self.layers,
            "columns": [*self.columns],
        }


@dataclass(frozen=True, slots=True)
class About:
    """Content of an export.

    Args:
        facts: All that a reader of the files has to know, plain.
    """

    run: str
    attempt: int
    page: str
    layers: Sequence[Layer]
    choice: ExportSelection
    facts: Mapping[str, Any]
