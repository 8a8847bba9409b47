"""What passing time puts into the log between records: ticks, and BEATs of processes that live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.alerts.replay import SECOND_NS
from gradwatch_server.core.entries import Beats, Entry, Lost, Opened, Progress, Received, Tick
from gradwatch_wire import Bye, Stats

TICK_NS: Final = 5 * SECOND_NS
"""Time without an entry after which the aggregator notes that time passes."""


class Passing:
    """Follows the entries of a run."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._last_steps: dict[bytes, int] = {}  # of the sessions that are there

    def before(self, entry: Entry) -> Iterator[Entry]:
        """Yield what the log has in the gap before an entry."""
        if self._last_ns is None:
            return
        is_killed = isinstance(entry.body, Lost)
        for now_ns in range(self._last_ns + TICK_NS, entry.received_ns, TICK_NS):
            since_s = (now_ns - self._last_ns) / SECOND_NS
            if not is_killed:
                sessions = self._last_steps.items()
                yield Entry(now_ns, Beats(tuple(Progress(*each, since_s) for each in sessions)))
            yield Entry(now_ns, Tick())

    def follow(self, entry: Entry) -> int | None:
        """Note an entry; return the step of its record, None if it has none."""
        self._last_ns = entry.received_ns
        match entry.body:
            case Opened(session, _):
                self._last_steps[session] = -1
            case Lost(session):
                del self._last_steps[session]
            case Received(envelope):
                match envelope.record:
                    case Stats(step=step):
                        self._last_steps[envelope.session] = step
                        return step
                    case Bye():
                        del self._last_steps[envelope.session]
        return None
