"""A batch: what one round puts into the log, and who is to be told once it is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from gradwatch_server.core.entries import Body, Entry
from gradwatch_server.core.sequence import SequenceTracker
from gradwatch_server.ingest.credit import Credit
from gradwatch_server.storage.rows import LogEntry
from gradwatch_wire import Ack, Welcome


@dataclass(slots=True)
class Reply:
    """Answer to a session.

    Args:
        max_in_flight_bytes: Promise to a client that does not keep to windows, None to others.
    """

    peer: bytes
    welcome: bool = False
    max_in_flight_bytes: int | None = None
    rewind: bool = False


@dataclass(slots=True)
class Batch:
    """Lines in the order in which they are logged, and one answer for each session."""

    lines: list[LogEntry] = field(default_factory=list)
    answers: dict[bytes, Reply] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)

    def add(self, run: str, now_ns: int, body: Body, raw: bytes | None = None) -> None:
        self.lines.append(LogEntry(run, Entry(now_ns, body), raw))

    def by_run(self) -> dict[str, list[Entry]]:
        """Return the entries of each run, and bring the lines into this order."""
        lines: dict[str, list[LogEntry]] = {}
        for line in self.lines:
            lines.setdefault(line.run, []).append(line)
        if len(lines) > 1:
            self.lines = [line for entries in lines.values() for line in entries]
        return {run: [line.entry for line in entries] for run, entries in lines.items()}

    def answer(self, session: bytes, peer: bytes) -> Reply:
        """Return the answer to a session, a new one if it gets none yet."""
        return self.answers.setdefault(session, Reply(peer))

    def acknowledgements(
        self,
        tracker: SequenceTracker,
        hello: Welcome,
        credit: Credit,
        every_of: Callable[[bytes], int],
        now_s: float,
    ) -> Iterator[tuple[bytes, bytes, Welcome | Ack]]:
        """Yield peer, session and answer; to be sent only once the lines are committed.

        Args:
            every_of: Returns how many steps a session's attempt has between two measurements.
        """
        for session, answer in self.answers.items():
            acked = tracker.accepted(session)
            window_bytes, shrink = credit.answer(session, now_s)
            record: Welcome | Ack
            if answer.welcome:
                record = replace(hello, acked=acked, window_bytes=window_bytes)
                if answer.max_in_flight_bytes is not None:
                    record = replace(record, max_in_flight_bytes=answer.max_in_flight_bytes)
            else:
                record = Ack(
                    boot_id=hello.boot_id,
                    acked=acked,
                    rewind=answer.rewind,
                    window_bytes=window_bytes,
                    shrink=shrink,
                    every=every_of(session),
                )
            yield answer.peer, session, record
