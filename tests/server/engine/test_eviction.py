"""Order of eviction when there is no room: empty runs, then those that ended longest ago."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch_server.core.entries import Body, Entry, Forgotten, Lost, Opened, Received
from gradwatch_server.engine.eviction import Usefulness, candidates, outnumbered
from gradwatch_wire import Bye, Envelope, Event, Hello, Record
from tests.support.records import manifest_of, stats_of
from tests.support.whole_state import WholeState

SECOND = 1_000_000_000

MARK = Event(name="mark", step=0)
FRAME = (manifest_of(["a"]), stats_of(0, [1.0]))


class Story:
    """A state, told a second at a time."""

    def __init__(self) -> None:
        self.state = WholeState()
        self._now_ns = 0
        self._num_sessions = 0

    def apply(self, body: Body) -> None:
        self._now_ns += SECOND
        self.state.apply(Entry(self._now_ns, body))

    def attach(self, run: str, *records: Record, job: str = "") -> bytes:
        """Say HELLO and these records."""
        self._num_sessions += 1
        session = self._num_sessions.to_bytes(16, "big")
        self.apply(Opened(session, Hello(run=run, rank=0, world=1, job=job)))
        for seq, record in enumerate(records, 1):
            self.apply(Received(Envelope(session=session, seq=seq, low=1, record=record)))
        return session

    def found(self, **num_of_owner: int) -> list[tuple[Usefulness, str, int]]:
        """Return what may go."""
        found = candidates(self.state, num_of_owner)
        return [(own.usefulness, own.run, own.attempts) for own in found]


def test_what_is_least_useful_goes_first() -> None:
    """A run that lives and has frames never does."""
    story = Story()
    story.attach("trains", *FRAME)
    story.attach("begins", MARK)
    story.attach("ended-first", *FRAME, Bye())
    story.attach("ended-last", *FRAME, Bye())
    story.attach("frameless", MARK, Bye())
    story.attach("empty")
    lost = story.attach("lost")
    story.apply(Lost(lost))

    assert story.found() == [
        (Usefulness.ENDED_EMPTY, "lost", 1),
        (Usefulness.EMPTY, "empty", 1),
        (Usefulness.ENDED_FRAMELESS, "frameless", 1),
        (Usefulness.ENDED, "ended-first", 1),
        (Usefulness.ENDED, "ended-last", 1),
        (Usefulness.FRAMELESS, "begins", 1),
    ]


def test_who_has_most_pays_first() -> None:
    """Among what is as useful."""
    story = Story()
    for run in ("a", "b", "c"):
        story.attach(run)

    assert [run for _, run, _ in story.found(b=7, c=9)] == ["c", "b", "a"]


def test_attempts_go_up_to_the_oldest_that_lives() -> None:
    story = Story()
    empty = story.attach("gpt", job="1")
    story.apply(Lost(empty))
    story.attach("gpt", *FRAME, Bye(), job="2")
    story.attach("gpt", *FRAME, job="3")

    assert story.found() == [
        (Usefulness.ENDED_EMPTY, "gpt", 1),
        (Usefulness.ENDED, "gpt", 2),
    ]
    for own in candidates(story.state, {}):
        story.apply(own.forgotten())
    assert _numbers(story) == [3]


def _numbers(story: Story) -> Sequence[int]:
    return [own.number for own in story.state.runs["gpt"].attempts]


def test_only_the_newest_attempts_stay() -> None:
    story = Story()
    for job in range(5):
        story.attach("gpt", MARK, Bye(), job=str(job))
    run = story.state.runs["gpt"]

    assert outnumbered(run, 5) is None
    assert outnumbered(run, 3) == Forgotten("gpt", 2)
    story.attach("gpt", MARK, job="lives")
    story.attach("gpt", MARK, Bye(), job="6")
    assert outnumbered(run, 1) == Forgotten("gpt", 5)
