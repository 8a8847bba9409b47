"""Silences and acknowledgements: facts in the log, from which all else follows."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.alerting.silences import Silence, Silences, fits
from gradwatch_server.core.entries import Acknowledged, SilenceAdded, SilenceRemoved
from tests.support.core import SECOND, START_NS, Cluster

NAN = math.nan


def silence(**changes: Any) -> Silence:
    own: dict[str, Any] = {
        "id": "5" * 16,
        "run": "*",
        "rule": "*",
        "layers": "*",
        "until_ns": START_NS + 3600 * SECOND,
        "created_ns": START_NS,
        "by": "ada",
        "comment": "",
    }
    return Silence(**own | changes)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ({}, True),
        ({"run": "gpt*"}, True),
        ({"run": "GPT"}, False),
        ({"rule": "exploding"}, True),
        ({"rule": "nan"}, False),
        ({"layers": "h.*"}, True),
        ({"layers": "h.0.*"}, False),  # one of the layers is another
        ({"run": "gpt", "rule": "expl*", "layers": "h.?.w"}, True),
        ({"run": "bert", "layers": "h.*"}, False),
    ],
)
def test_an_alert_fits_if_all_its_layers_do(patterns: dict[str, str], expected: bool) -> None:
    assert silence(**patterns).fits("gpt", "exploding", ("h.0.w", "h.1.w")) is expected


def test_an_alert_about_the_run_fits_no_pattern_of_layers() -> None:
    assert silence().fits("gpt", "gain", ())
    assert not silence(layers="h.*").fits("gpt", "gain", ())
    assert fits("[ab].w", "a.w")
    assert not fits("[ab].w", "c.w")


def test_those_that_ended_are_dropped_when_one_is_added() -> None:
    silences = Silences()
    silences.add(silence(id="a", until_ns=START_NS + 5))
    silences.add(silence(id="b", created_ns=START_NS + 5))

    assert [silence.id for silence in silences] == ["b"]


def test_a_silenced_alert_lives_on_unheard() -> None:
    job = Cluster(names=("a", "b")).start()
    job.put(SilenceAdded(silence(rule="nonfinite")))
    job.step(0, [NAN, 1.0], loss=1.0)
    job.step(1, [NAN, NAN], loss=1.0)
    for step in (2, 3, 4):
        job.step(step)

    assert [(a.change, a.silenced) for a in job.alerts] == [
        ("firing", True),
        ("firing:1", True),
        ("resolved", True),
    ]


def test_an_alert_outlives_its_silence() -> None:
    job = Cluster(names=("a",)).start()
    job.put(SilenceAdded(silence(until_ns=job.now_ns + 30 * SECOND)))
    job.step(0, NAN)
    job.step(1, NAN)
    job.now_ns += 30 * SECOND
    (told,) = job.step(2, NAN)
    for step in (3, 4, 5):
        job.step(step)

    assert (told.change, told.silenced, told.update.news) == ("firing:1", False, ("silence_ended",))
    assert told.message.endswith("; at step 2: no longer silenced")
    assert [(a.change, a.silenced) for a in job.alerts[-1:]] == [("resolved", False)]


def test_who_was_told_that_it_fires_is_told_that_it_is_over() -> None:
    """Silenced in between, it shows that at once."""
    job = Cluster(names=("a",)).start()
    job.step(0, NAN)
    job.put(SilenceAdded(silence(layers="a")))
    assert job.attempt.active_alerts.alerts()[0].silenced
    for step in (1, 2, 3):
        job.step(step)

    assert [(a.change, a.silenced) for a in job.alerts] == [("firing", False), ("resolved", False)]


def test_a_layer_that_nobody_thought_of_breaks_a_silence() -> None:
    """Joining an alert, it is told."""
    job = Cluster(names=("head", "h.0")).start()
    job.put(SilenceAdded(silence(layers="head")))
    job.step(0, [NAN, 1.0], loss=1.0)
    (told,) = job.step(1, [NAN, NAN], loss=1.0)

    assert (told.silenced, told.update.news) == (False, ("layers", "silence_ended"))


def test_a_silence_can_be_taken_back() -> None:
    """The next step tells."""
    job = Cluster(names=("a",)).start()
    job.put(SilenceAdded(silence()))
    job.step(0, NAN)
    job.put(SilenceRemoved("5" * 16))
    job.put(SilenceRemoved("no such"))
    (told,) = job.step(1, NAN)

    assert told.change == "firing:1"
    assert not told.silenced


def test_an_acknowledged_alert_says_so_and_goes_on() -> None:
    """An event of its own; that it widens is told all the same."""
    job = Cluster(names=("a", "b")).start()
    (fired,) = job.step(0, [NAN, 1.0], loss=1.0)
    (known,) = job.put(Acknowledged("gpt", 1, fired.id, "ada", "looking"))
    (wider,) = job.step(1, [NAN, NAN], loss=1.0)

    assert (known.id, known.change) == (fired.id, "firing:1")
    assert known.to_dict()["acknowledged"]["by"] == "ada"
    assert known.message == f"{fired.message}; at step 0: acknowledged by ada"
    assert (wider.change, wider.acknowledged) == ("firing:2", known.acknowledged)
    assert job.put(Acknowledged("gpt", 1, "no such", "ada", "")) == []
    assert job.put(Acknowledged("bert", 1, fired.id, "ada", "")) == []
