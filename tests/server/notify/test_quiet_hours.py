"""Quiet hours, in a time zone, over midnight and over the change of clocks."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gradwatch_server.notify.quiet_hours import QuietHours

BERLIN = ZoneInfo("Europe/Berlin")


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("hours", "now", "ends"),
    [
        ("22:00-07:00", "2026-11-23 21:59:59", None),
        ("22:00-07:00", "2026-11-23 22:00", "2026-11-24 07:00"),
        ("22:00-07:00", "2026-11-24 06:59", "2026-11-24 07:00"),
        ("22:00-07:00", "2026-11-24 07:00", None),
        ("12:00-13:30", "2026-11-24 13:00", "2026-11-24 13:30"),
        ("12:00-13:30", "2026-11-24 14:00", None),
        ("22:00-07:00", "2026-03-28 23:00", "2026-03-29 07:00"),  # the clock goes forward
        ("00:00-06:00", "2026-10-25 01:00", "2026-10-25 06:00"),  # and back
    ],
)
def test_when_they_end(hours: str, now: str, ends: str | None) -> None:
    """As the clock on the wall shows it."""
    found = QuietHours.parse(hours, BERLIN).ends_s(seconds(now))

    assert found == (None if ends is None else seconds(ends))


@pytest.mark.parametrize("text", ["22-7", "24:00-07:00", "22:00-07:60", "22:00", "08:00-08:00", ""])
def test_what_is_no_time_of_day_is_refused(text: str) -> None:
    """With an example."""
    with pytest.raises(ValueError, match="22:00-07:00"):
        QuietHours.parse(text, BERLIN)
