"""Sessions without end: of ever new runs, of very many ranks, of a job that crashes at once."""

from __future__ import annotations

from typing import Final

from benchmarks.attacks.attack import Refused, Stop, Target, paced
from benchmarks.attacks.line import Line, Session
from gradwatch_wire import Bye, Hello

MAX_RANKS: Final = 65_536


def names(target: Target, stop: Stop, refused: Refused) -> None:
    """HELLO under ever new run names, 500/s."""
    line = Line(target, refused)
    for number in paced(500, stop):
        line.send(Session(Hello(run=f"sweep-{number}", rank=0, world=1)).greeting(), stop)
    line.close()


def sessions(target: Target, stop: Stop, refused: Refused) -> None:
    """A HELLO of 7.4 kB for each rank of one wide run, 1,000/s."""
    line = Line(target, refused)
    versions = {f"part{number}": "x" * 230 for number in range(31)}
    for number in paced(1_000, stop):
        rank = number % MAX_RANKS
        hello = Hello(run="crowded", rank=rank, world=MAX_RANKS, versions=versions, job="one")
        line.send(Session(hello).greeting(), stop)
    line.close()


def crash_loop(target: Target, stop: Stop, refused: Refused) -> None:
    """A job that says HELLO, ends with an exception and begins anew, 200 times a second."""
    line = Line(target, refused)
    for number in paced(200, stop):
        rank = Session(Hello(run="crashes", rank=0, world=1, job=f"launch{number}"))
        line.send(rank.greeting(), stop)
        line.send(rank.next(Bye(reason="exception")), stop)
    line.close()
