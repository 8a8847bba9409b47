"""Sessions without end, and records that cost much: too wide, too large, out of order, flapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile
from typing import Final

import msgpack

from benchmarks.attacks.attack import paced
from benchmarks.attacks.line import Line, Session, open_sessions, stats_record
from gradwatch_wire import Bye, Hello, Kind
from gradwatch_wire.codec import join
from tests.support.records import manifest_of

MAX_RANKS: Final = 65_536


def names(line: Line) -> None:
    """HELLO under ever new run names, 500/s."""
    for number in paced(500, line.stop):
        line.send(Session(Hello(run=f"sweep-{number}", rank=0, world=1)).greeting())


def sessions(line: Line) -> None:
    """A HELLO of 7.4 kB for each rank of one wide run, 1,000/s."""
    versions = {f"part{number}": "x" * 230 for number in range(31)}
    for number in paced(1_000, line.stop):
        rank = number % MAX_RANKS
        hello = Hello(run="crowded", rank=rank, world=MAX_RANKS, versions=versions, job="one")
        line.send(Session(hello).greeting())


def crash_loop(line: Line) -> None:
    """A job that says HELLO, ends with an exception and begins anew, 200 times a second."""
    for number in paced(200, line.stop):
        rank = Session(Hello(run="crashes", rank=0, world=1, job=f"launch{number}"))
        line.send(rank.greeting())
        line.send(rank.next(Bye(reason="exception")))


def wide(line: Line) -> None:
    """20 runs with a world of 65,536 of which one rank sends, 390 records/s."""
    ranks = [Session(Hello(run=f"wide-{n}", rank=5, world=MAX_RANKS)) for n in range(20)]
    open_sessions(line, ranks, manifest_of(["layer"]))
    for number in paced(390, line.stop):
        stats = stats_record(number // len(ranks), {"l2": [1.0]})
        line.send(ranks[number % len(ranks)].next(stats))


def manifests(line: Line) -> None:
    """A new manifest of 1.9 MB, 2.5 times a second."""
    layers = 4_000
    groups = {f"group{number}": (*range(layers),) * 5 for number in range(32)}
    manifest = manifest_of([f"layer{number}" for number in range(layers)], groups=groups)
    rank = Session(Hello(run="redeclares", rank=0, world=1))
    line.send(rank.greeting())
    for number in paced(2.5, line.stop):
        line.send(rank.next(replace(manifest, manifest_id=number + 1)))


def descending(line: Line) -> None:
    """Records of 1 MB whose steps go down, of one of two ranks, 20/s: their frames all wait."""
    layers = 16_000
    ranks = [Session(Hello(run="descends", rank=rank, world=2)) for rank in range(2)]
    open_sessions(line, ranks, manifest_of([f"layer{number}" for number in range(layers)]))
    columns = ("l2", "l1", "linf", "zeros", "nans", "infs", "l2_max", "l2_mean")
    stats = stats_record(0, dict.fromkeys(columns, [1.0] * layers))
    for number in paced(20, line.stop):
        line.send(ranks[0].next(replace(stats, step=1_000_000 - number)))


def flood(line: Line) -> None:
    """Records of 11 kB of one session as fast as the connection takes them, without credit."""
    _send_on(line, Hello(run="floods", rank=0, world=1))


def lying(line: Line) -> None:
    """The same of a client that announces credit, and does not keep to its window."""
    _send_on(line, Hello(run="lies", rank=0, world=1, credit=True))


def _send_on(line: Line, hello: Hello) -> None:
    rank, layers = Session(hello), 300
    open_sessions(line, [rank], manifest_of([f"layer{number}" for number in range(layers)]))
    stats = stats_record(0, dict.fromkeys(("l2", "l1", "linf", "zeros"), [1.0] * layers))
    for number in takewhile(lambda _: not line.stop(), count()):
        line.send(rank.next(replace(stats, step=number)))


def empty_maps(line: Line) -> None:
    """Messages of 2 MiB of empty maps under a key that nobody knows, 20/s."""
    maps = msgpack.packb([{}] * 65_535)
    body = {"name": "x", "step": 0} | {f"later{number}": None for number in range(32)}
    packed = msgpack.packb(body).replace(b"\xc0", maps)[: (2 << 20) - 100]
    for _ in paced(20, line.stop):
        line.send(join(int(Kind.EVENT), bytes(16), 1, 1, 0, packed))


def flapping_runs(line: Line) -> None:
    """990 runs whose two layers turn bad and good again every 6 steps, 400 records/s."""
    ranks = [Session(Hello(run=f"flaps-{number}", rank=0, world=1)) for number in range(990)]
    open_sessions(line, ranks, manifest_of(["one", "two"]))
    for number in paced(400, line.stop):
        step = number // len(ranks)
        values = [float("nan") if step // 6 % 2 else 1.0] * 2
        line.send(ranks[number % len(ranks)].next(stats_record(step, {"l2": values})))


def flapping(line: Line) -> None:
    """300 layers with long names that turn bad and good again every 6 steps, 100 records/s."""
    groups = {"\x02" * 400 + f"{n}": tuple(range(n * 5, n * 5 + 5)) for n in range(60)}
    flap(line, ["\x01" * 500 + f"{n}" for n in range(300)], groups)


def flap(line: Line, layers: Sequence[str], groups: Mapping[str, tuple[int, ...]]) -> None:
    """Send statistics at 100 records/s that are bad and good again every 6 steps."""
    rank = Session(Hello(run="flaps", rank=0, world=1))
    open_sessions(line, [rank], manifest_of(layers, groups=groups))
    good, bad = [1.0] * len(layers), [float("nan")] * len(layers)
    for number in paced(100, line.stop):
        line.send(rank.next(stats_record(number, {"l2": bad if number // 6 % 2 else good})))
