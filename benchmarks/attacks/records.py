"""Records that cost much: of runs that are too wide, too large, out of order, or that flap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

import msgpack

from benchmarks.attacks.attack import Refused, Stop, Target, paced
from benchmarks.attacks.line import Line, Session, open_sessions, stats_record
from benchmarks.attacks.sessions import MAX_RANKS
from gradwatch_wire import Hello, Kind
from gradwatch_wire.codec import join
from tests.support.records import manifest_of


def wide(target: Target, stop: Stop, refused: Refused) -> None:
    """20 runs with a world of 65,536 of which one rank sends, 390 records/s."""
    line = Line(target, refused)
    ranks = [Session(Hello(run=f"wide-{n}", rank=5, world=MAX_RANKS)) for n in range(20)]
    open_sessions(line, ranks, manifest_of(["layer"]), stop)
    for number in paced(390, stop):
        stats = stats_record(number // len(ranks), {"l2": [1.0]})
        line.send(ranks[number % len(ranks)].next(stats), stop)
    line.close()


def manifests(target: Target, stop: Stop, refused: Refused) -> None:
    """A new manifest of 1.9 MB, 2.5 times a second."""
    line = Line(target, refused)
    layers = 4_000
    groups = {f"group{number}": (*range(layers),) * 5 for number in range(32)}
    manifest = manifest_of([f"layer{number}" for number in range(layers)], groups=groups)
    rank = Session(Hello(run="redeclares", rank=0, world=1))
    line.send(rank.greeting(), stop)
    for number in paced(2.5, stop):
        line.send(rank.next(replace(manifest, manifest_id=number + 1)), stop)
    line.close()


def descending(target: Target, stop: Stop, refused: Refused) -> None:
    """Records of 1 MB whose steps go down, of one of two ranks, 20/s: their frames all wait."""
    line = Line(target, refused)
    layers = 16_000
    ranks = [Session(Hello(run="descends", rank=rank, world=2)) for rank in range(2)]
    open_sessions(line, ranks, manifest_of([f"layer{number}" for number in range(layers)]), stop)
    columns = ("l2", "l1", "linf", "zeros", "nans", "infs", "l2_max", "l2_mean")
    stats = stats_record(0, dict.fromkeys(columns, [1.0] * layers))
    for number in paced(20, stop):
        line.send(ranks[0].next(replace(stats, step=1_000_000 - number)), stop)
    line.close()


def flood(target: Target, stop: Stop, refused: Refused) -> None:
    """Records of 11 kB of one session as fast as the connection takes them, without credit."""
    _send_on(target, Hello(run="floods", rank=0, world=1), stop, refused)


def lying(target: Target, stop: Stop, refused: Refused) -> None:
    """The same of a client that announces credit, and does not keep to its window."""
    _send_on(target, Hello(run="lies", rank=0, world=1, credit=True), stop, refused)


def _send_on(target: Target, hello: Hello, stop: Stop, refused: Refused) -> None:
    line, rank, layers = Line(target, refused), Session(hello), 300
    open_sessions(line, [rank], manifest_of([f"layer{number}" for number in range(layers)]), stop)
    stats = stats_record(0, dict.fromkeys(("l2", "l1", "linf", "zeros"), [1.0] * layers))
    for number in count():
        if stop():
            break
        line.send(rank.next(replace(stats, step=number)), stop)
    line.close()


def empty_maps(target: Target, stop: Stop, refused: Refused) -> None:
    """Messages of 2 MiB of empty maps under a key that nobody knows, 20/s."""
    line = Line(target, refused)
    maps = msgpack.packb([{}] * 65_535)
    body = {"name": "x", "step": 0} | {f"later{number}": None for number in range(32)}
    packed = msgpack.packb(body).replace(b"\xc0", maps)[: (2 << 20) - 100]
    for _ in paced(20, stop):
        line.send(join(int(Kind.EVENT), bytes(16), 1, 1, 0, packed), stop)
    line.close()


def flapping_runs(target: Target, stop: Stop, refused: Refused) -> None:
    """990 runs whose two layers turn bad and good again every 6 steps, 400 records/s."""
    line = Line(target, refused)
    ranks = [Session(Hello(run=f"flaps-{number}", rank=0, world=1)) for number in range(990)]
    open_sessions(line, ranks, manifest_of(["one", "two"]), stop)
    for number in paced(400, stop):
        step = number // len(ranks)
        values = [float("nan") if step // 6 % 2 else 1.0] * 2
        line.send(ranks[number % len(ranks)].next(stats_record(step, {"l2": values})), stop)
    line.close()


def flapping(target: Target, stop: Stop, refused: Refused) -> None:
    """300 layers with long names that turn bad and good again every 6 steps, 100 records/s."""
    line = Line(target, refused)
    layers = 300
    groups = {"\x02" * 400 + f"{n}": tuple(range(n * 5, n * 5 + 5)) for n in range(60)}
    flap(line, ["\x01" * 500 + f"{n}" for n in range(layers)], groups, stop)
    line.close()


def flap(
    line: Line, layers: Sequence[str], groups: Mapping[str, tuple[int, ...]], stop: Stop
) -> None:
    """Send statistics at 100 records/s that are bad and good again every 6 steps."""
    rank = Session(Hello(run="flaps", rank=0, world=1))
    open_sessions(line, [rank], manifest_of(layers, groups=groups), stop)
    good, bad = [1.0] * len(layers), [float("nan")] * len(layers)
    for number in paced(100, stop):
        line.send(rank.next(stats_record(number, {"l2": bad if number // 6 % 2 else good})), stop)
