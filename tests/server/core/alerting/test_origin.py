"""Where trouble began: what `/health` keeps as `first_bad`."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.alerting.origin import find_first_bad
from tests.support.core import frame_of, part_of

NAN, INF = math.nan, math.inf


def test_trouble_between_reports_is_dated_and_not_placed_by_what_came_later() -> None:
    scalars = {"first_nonfinite_step": 5.0}

    def first_bad(peak: list[float]) -> Any:
        frame = frame_of(part_of([1.0, 1.0], l2_max=peak, scalars=scalars), after=3)
        found = find_first_bad(frame, ("a", "b"))
        assert found is not None
        return found.step, found.layer

    assert first_bad([NAN, NAN]) == (5, None)
    assert first_bad([NAN, 1.0]) == (5, "a")


def test_first_bad_is_the_gradient_before_the_loss() -> None:
    """A non-finite gradient names a layer; a loss alone names the rank only."""
    gradient = frame_of(part_of([1.0, INF], scalars={"loss": 1.0}))
    loss = frame_of(
        part_of([1.0], scalars={"loss": INF}), part_of([1.0], rank=1, scalars={"loss": 1.0})
    )
    losses = frame_of(*(part_of([1.0], rank=r, scalars={"loss": NAN}) for r in (0, 1)))

    def first_bad(frame: Any) -> tuple[Any, ...]:
        found = find_first_bad(frame, ("a", "b"))
        assert found is not None
        return found.step, found.rank, found.layer, found.kind

    assert first_bad(gradient) == (7, 0, "b", "inf")
    assert first_bad(loss) == (7, 0, None, "inf")
    assert first_bad(losses) == (7, None, None, "nan")


def test_a_finite_frame_is_not_bad() -> None:
    """Large, small and missing numbers are not non-finite."""
    frame = frame_of(part_of([1e308, 0.0], scalars={"loss": -1e308}))

    assert find_first_bad(frame, ("a", "b")) is None


LOSS_TABLE = [
    # (losses by rank, layers that are bad) and what is said: (layer, whether the loss was bad).
    ("a bad loss", [NAN], [NAN] * 3, (None, True)),
    ("a fine one: its own gradient is bad", [1.0], [NAN] * 3, ("c", False)),
    ("none given, and the last layer is bad", [None], [NAN] * 3, (None, None)),
    ("none given, and only the last layer is bad", [None], [1.0, 1.0, NAN], ("c", None)),
    ("none given, and a later layer is fine", [None], [NAN, NAN, 1.0], ("b", None)),
    ("bad on the rank that it began on", [1.0, NAN], [NAN] * 3, (None, True)),
    ("fine on all ranks", [1.0, 1.0], [NAN] * 3, ("c", False)),
    ("fine on one, not given by the other", [1.0, None], [NAN] * 3, (None, None)),
    ("bad on one, not given by the other", [NAN, None], [NAN] * 3, (None, True)),
]


@pytest.mark.parametrize(
    ("losses", "norms", "said"), [row[1:] for row in LOSS_TABLE], ids=[row[0] for row in LOSS_TABLE]
)
def test_no_layer_is_blamed_for_what_the_loss_brought(
    losses: list[float | None], norms: list[float], said: Any
) -> None:
    """The layer whose gradient is computed first is the first to show it (C14)."""
    frame = frame_of(
        *(
            part_of(norms, rank=rank, scalars={} if loss is None else {"loss": loss})
            for rank, loss in enumerate(losses)
        )
    )
    found = find_first_bad(frame, ("a", "b", "c"))

    assert found is not None
    assert (found.layer, found.bad_loss) == said
    assert found.first_gradient == "abc"[max(i for i, norm in enumerate(norms) if norm != 1.0)]


def test_the_loss_of_the_rank_it_began_on_counts() -> None:
    """Rank 0's own gradient was bad with a fine loss; rank 1's loss is another matter (C14)."""
    frame = frame_of(
        part_of([1.0, NAN], scalars={"loss": 1.0, "local_probe": NAN}),
        part_of([1.0, NAN], rank=1, scalars={"loss": NAN, "local_probe": 1.0}),
    )
    found = find_first_bad(frame, ("a", "b"))

    assert found is not None
    assert (found.rank, found.layer, found.bad_loss) == (0, "b", False)


def test_the_loss_of_several_steps_is_that_of_the_first_bad_one() -> None:
    """By the end of the record the weights are NaN, and with them the mean of the losses (C14)."""

    def said(**more: float) -> Any:
        scalars = {"loss": NAN, "first_nonfinite_step": 5.0, **more}
        found = find_first_bad(frame_of(part_of([1.0, NAN], scalars=scalars)), ("a", "b"))
        assert found is not None
        return found.step, found.layer, found.bad_loss

    assert said() == (5, "b", None)
    assert said(first_nonfinite_loss=1.0) == (5, "b", False)
    assert said(first_nonfinite_loss=NAN) == (5, None, True)
