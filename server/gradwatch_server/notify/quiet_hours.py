"""Hours in which a target is left alone, in its own time zone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

EXAMPLE: Final = "22:00-07:00"

_FORM: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Every day from one time to another, over midnight where the end is before the start.

    Args:
        start: From then on.
        end: Until then.
        timezone: Where these times are.
    """

    start: time
    end: time
    timezone: tzinfo

    @classmethod
    def parse(cls, text: str, timezone: tzinfo) -> Self:
        """Read them as they are written.

        Raises:
            ValueError: If they are not of the form `22:00-07:00`, or are the whole day.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            msg = f'should be two times of day, such as "{EXAMPLE}"'
            raise ValueError(msg)
        start_hour, start_minute, end_hour, end_minute = map(int, match.groups())
        start, end = time(start_hour, start_minute), time(end_hour, end_minute)
        if start == end:
            msg = f'should begin and end at different times, such as "{EXAMPLE}"'
            raise ValueError(msg)
        return cls(start, end, timezone)

    def ends_s(self, now_s: float) -> float | None:
        """Return when the hours end that it is now, seconds since the epoch; None outside them."""
        now = datetime.fromtimestamp(now_s, UTC).astimezone(self.timezone)
        clock = now.time()
        over_midnight = self.start > self.end
        if over_midnight:
            is_quiet = clock >= self.start or clock < self.end
        else:
            is_quiet = self.start <= clock < self.end
        if not is_quiet:
            return None
        day = now.date()
        if over_midnight and clock >= self.start:
            day += timedelta(days=1)
        return datetime.combine(day, self.end, self.timezone).timestamp()


def zone(name: str) -> tzinfo:
    """Return a time zone; UTC is also there where the system has no others.

    Raises:
        ValueError: If there is none of that name.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        msg = (
            "should be a time zone of the IANA database, such as Europe/Berlin; a system without "
            "that database has UTC alone, until it gets the package tzdata"
        )
        raise ValueError(msg) from None
