"""Where trouble began: what `/health` keeps as `first_bad`."""

from __future__ import annotations

import math
from typing import Any

from gradwatch_server.core.alerting.origin import Origin, find_first_bad

NAN, INF = math.nan, math.inf


def test_trouble_between_reports_is_dated_and_not_placed_by_what_came_later(
    make_part: Any, make_frame: Any
) -> None:
    """By the next report all layers are NaN: which was first is not known, one alone is."""
    scalars = {"first_nonfinite_step": 5.0}

    def first_bad(peak: list[float]) -> Any:
        frame = make_frame(make_part([1.0, 1.0], l2_max=peak, scalars=scalars), after=3)
        found = find_first_bad(frame, ("a", "b"))
        assert found is not None
        return found.step, found.layer

    assert first_bad([NAN, NAN]) == (5, None)
    assert first_bad([NAN, 1.0]) == (5, "a")


def test_first_bad_is_the_gradient_before_the_loss(make_part: Any, make_frame: Any) -> None:
    """A non-finite gradient names a layer; a loss alone names the rank only."""
    both = make_frame(make_part([1.0, INF], scalars={"loss": NAN}))
    loss = make_frame(
        make_part([1.0], scalars={"loss": INF}), make_part([1.0], rank=1, scalars={"loss": 1.0})
    )
    losses = make_frame(*(make_part([1.0], rank=r, scalars={"loss": NAN}) for r in (0, 1)))

    def first_bad(frame: Any) -> tuple[Any, ...]:
        found = find_first_bad(frame, ("a", "b"))
        assert found is not None
        return found.step, found.rank, found.layer, found.kind

    assert first_bad(both) == (7, 0, "b", "inf")
    assert first_bad(loss) == (7, 0, None, "inf")
    assert first_bad(losses) == (7, None, None, "nan")


def test_a_finite_frame_is_not_bad(make_part: Any, make_frame: Any) -> None:
    """Large, small and missing numbers are not non-finite."""
    frame = make_frame(make_part([1e308, 0.0], scalars={"loss": -1e308}))

    assert find_first_bad(frame, ("a", "b")) is None


def test_an_origin_comes_back_as_it_was() -> None:
    """Through what a file gives back, which has lists for tuples."""
    origin = Origin(7, None, (0, 1), "a", "nan", 1.5, 100.0, ((5, 1.0), (6, 2.0)))
    plain = origin.state_dict() | {"ranks": [0, 1], "before": [[5, 1.0], [6, 2.0]]}

    assert Origin.from_state_dict(plain) == origin
