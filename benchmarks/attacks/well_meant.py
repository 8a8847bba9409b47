"""No attacks: what many do who mean well."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Final

from benchmarks.alert_readers import AlertReaders
from benchmarks.attacks.attack import Outcome, Target, paced
from benchmarks.attacks.line import Line, Session, open_sessions, stats_record
from benchmarks.senders import LAYERS, healthy_columns
from gradwatch_wire import Bye, Column, Hello, Stats
from gradwatch_wire.session.timing import MAX_IN_FLIGHT
from tests.support.records import manifest_of

FLAP_STEPS: Final = 12
CAPACITY_S: Final = 3.0
"""How long it is measured how much the aggregator can take."""


def half_of_capacity(line: Line) -> Outcome:
    """A run of 300 layers at half of the rate that the aggregator took at most before."""
    rank, columns = _open_usual(line, "usual")
    rate, sent, began_s = line.target.rate / 2, 0, time.monotonic()
    for number in paced(rate, line.stop):
        line.send(rank.next(Stats(manifest_id=1, step=number, columns=columns[number % 2])))
        sent += 1
    seconds = time.monotonic() - began_s
    return Outcome(notes=[f"{sent / seconds:,.0f} records/s, of {line.target.rate:,.0f}"])


def find_capacity(target: Target) -> float:
    """Return how many records a second an aggregator acknowledges of one that never waits."""
    end_s = time.monotonic() + CAPACITY_S
    line = Line(target, Counter(), lambda: time.monotonic() > end_s)
    rank, columns = _open_usual(line, "flood")
    began_s, step = time.monotonic(), 0
    while not line.stop():
        if rank.seq - line.acked < MAX_IN_FLIGHT:
            step += 1
            stats = Stats(manifest_id=1, step=step, columns=columns[step % 2])
            line.send(rank.next(stats))
        else:
            line.wait(20)
    rate = line.acked / (time.monotonic() - began_s)
    line.stop = lambda: False
    line.send(rank.next(Bye()))
    line.close()
    return rate


def _open_usual(line: Line, run: str) -> tuple[Session, list[dict[str, Column]]]:
    rank = Session(Hello(run=run, rank=0, world=1))
    open_sessions(line, [rank], manifest_of([f"layer{number}" for number in range(LAYERS)]))
    return rank, healthy_columns(random.Random(0))[:2]


def many_readers(line: Line) -> Outcome:
    """500 alert streams of which 150 are never read, while an alert begins or ends each 0.3 s."""
    readers = AlertReaders(line.target.http)
    rank = Session(Hello(run="alerting", rank=0, world=1))
    is_over, line.stop = line.stop, lambda: False
    open_sessions(line, [rank], manifest_of(["one", "two"]))
    step, due_s = 0, time.monotonic()
    while step < FLAP_STEPS or not is_over():  # at least until the first one
        value = float("nan") if step // 6 % 2 else 1.0
        readers.note_sent(step)
        line.send(rank.next(stats_record(step, {"l2": [value] * 2})))
        step, due_s = step + 1, due_s + 1 / 20
        readers.read(due_s)
    wrongs = list(readers.finish())
    readers.close()
    return Outcome(notes=list(readers.told()), wrongs=wrongs)
