"""Rules that are limited to runs, layers or groups judge those alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.core import Cluster

LOUD = [500.0, 500.0, 500.0]
ONCE = {"for_steps": 1}


def told(job: Any) -> list[tuple[str, str, str, tuple[str, ...]]]:
    return [(a.rule, str(a.state), a.group, a.layers) for a in job.alerts]


@pytest.mark.parametrize(
    ("limits", "layers"),
    [
        ({"layers": ["h.*"]}, ("h.0", "h.1")),
        ({"layers": ["!h.*"]}, ("head",)),
        ({"layers": ["h.*", "!h.0"]}, ("h.1",)),
        ({"groups": ["top"]}, ("h.1", "head")),
        ({"groups": ["all"]}, ("h.0",)),
        ({"groups": ["top"], "layers": ["h.*"]}, ("h.1",)),
        ({"runs": ["gp*"]}, ("h.0", "h.1", "head")),
        ({"layers": ["H.*"]}, ()),
        ({"groups": ["bottom"]}, ()),
        ({"runs": ["*", "!gpt"]}, ()),
    ],
)
def test_only_what_is_watched_raises_and_counts(
    limits: dict[str, Any], layers: tuple[str, ...]
) -> None:
    job = Cluster(names=("h.0", "h.1", "head"), groups={"top": (1, 2)}).start()
    job.rules(exploding=ONCE | limits)
    job.step(0, LOUD)
    report = job.health()

    assert sorted(name for alert in job.alerts for name in alert.layers) == sorted(layers)
    assert report["layers"]["exploding"] == len(layers)
    assert report["has_exploding"] == bool(layers)
    assert report["score"]["last"] == pytest.approx(1.0 - 0.8 * len(layers) / 3)


def test_what_is_no_longer_watched_is_resolved() -> None:
    job = Cluster(names=("h.0", "head")).start()
    job.rules(exploding=ONCE)
    job.step(0, [1.0, 500.0])
    job.rules(exploding=ONCE | {"layers": ["h.*"], "clear_steps": 2})
    job.step(1, [1.0, 500.0])
    job.step(2, [1.0, 500.0])

    assert told(job) == [
        ("exploding", "firing", "all", ("head",)),
        ("exploding", "resolved", "all", ("head",)),
    ]


def test_layers_that_come_later_are_watched() -> None:
    job = Cluster(names=("a",)).start()
    job.rules(exploding=ONCE | {"layers": ["head*"]})
    job.step(0, [500.0])
    job.declare(0, ("a", "head.w"))
    job.step(1, [500.0, 500.0])

    assert told(job) == [("exploding", "firing", "all", ("head.w",))]
