"""An alert and its words."""

from __future__ import annotations

import math

from gradwatch_server.core.alerting.alert import Alert, alert_id, isotime
from gradwatch_server.core.printable import printable
from gradwatch_server.core.state_codec import decode, encode
from tests.support.core import Cluster

NAN = math.nan


def test_the_id_is_the_same_for_ever() -> None:
    """Links that were told must lead to their alerts: the recipe never changes."""
    assert alert_id("gpt2-small", 1, "nonfinite", "all", 412) == "3705bfb9e7b23eb6"


def test_as_plain_data_it_has_a_readable_time() -> None:
    """Nanoseconds would lose digits in JSON readers; nested values are plain, too."""
    job = Cluster(names=("a",)).start()
    (alert,) = job.step(0, NAN)
    plain = alert.to_dict()

    assert "updated_ns" not in plain
    assert plain["updated_at"] == isotime(alert.updated_ns)
    assert isotime(1_763_000_000_123_456_789) == "2025-11-13T02:13:20.123+00:00"
    assert plain["origin"]["ranks"] == (0,)
    assert (plain["rule"], plain["state"], plain["layers"]) == ("nonfinite", "firing", ("a",))


def test_a_message_says_all_of_it_in_one_line() -> None:
    job = Cluster(world=2, names=("h.0", "h.1")).start()
    job.stats(0, 0, [1.0, NAN], loss=1.0, local_probe=1.0)
    (fired,) = job.stats(1, 0, [1.0, NAN], loss=1.0, local_probe=NAN)
    for step in (1, 2, 3):
        job.step(step)

    assert fired.origin.before == ()
    assert fired.message == "NaN gradient since step 0 on rank 1: h.1"
    assert job.alerts[-1].message == f"{fired.message}; over at step 3"


def test_a_name_from_the_wire_stays_inert_in_a_message() -> None:
    """Escape sequences, line ends and direction marks are written out; the name itself is kept."""
    name = "a\x1b[2J\n\u202eb é"
    job = Cluster(names=(name,)).start()
    (alert,) = job.step(0, NAN)

    assert alert.origin.layer == name
    assert alert.message.endswith(r": a\x1b[2J\n\u202eb é")
    assert printable("plain.0.weight") == "plain.0.weight"


def test_an_alert_comes_back_as_it_was() -> None:
    job = Cluster(names=("a", "b")).start()
    job.step(0)
    (alert,) = job.step(1, NAN)

    assert repr(decode(encode(alert), Alert)) == repr(alert)  # NaN is not equal to itself
