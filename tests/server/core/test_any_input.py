"""Whatever the wire lets through, the state takes, and what it shows of it can be shown."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwatch_server.core.alerting.attribution import explosion_ranks, rising_ranks
from gradwatch_server.core.frames.frame import COLUMNS_READ
from gradwatch_server.core.views.groups import describe_groups
from gradwatch_server.core.views.runs import describe_gains
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_wire import Alert, Column, Envelope, Event, Gains, Manifest, Stats, decode, encode
from gradwatch_wire.jsonable import jsonable
from gradwatch_wire.limits import MAX_STEP
from gradwatch_wire.packed_column import ITEMSIZE
from tests.support.core import Cluster, frame_of, part_of

pytestmark = pytest.mark.slow

SESSION = bytes(16)
NAMES = st.sampled_from(["a", "b", "c", "", "all", "\x00\x1b[2J", "é" * 200, "\u202e", "l" * 500])
NUMBERS = st.floats() | st.sampled_from(
    [0.0, -0.0, -1.0, 1e308, -1e308, 5e-324, 1e-300, 1e154, float("inf"), float("-inf")]
)
STEPS = st.integers(0, 6) | st.sampled_from([MAX_STEP, MAX_STEP - 1])
IDS = st.sampled_from([1, 1, 1, 2, 3])
SHARDS = st.sampled_from(["", "0/2", "1/2", "Shard(0) 0/2", "Shard(0) 1/2", "x 0/1", "2/65536"])
SCALARS = st.sampled_from(
    ["loss", "local_probe", "lr", "batch_size", "loss_scale", "first_nonfinite_step"]
)
LINKS = st.dictionaries(
    st.sampled_from(["name", "url"]),
    st.text()
    | st.sampled_from(["W&B", "https://h/1", "javascript:alert(1)"])
    | st.integers(-(1 << 63), (1 << 64) - 1),  # what msgpack can carry
)


@st.composite
def columns(draw: st.DrawFn, count: int) -> Column:
    code = draw(st.sampled_from(sorted(ITEMSIZE)))
    if code == "<f8" and draw(st.booleans()):
        return Column.pack(code, draw(st.lists(NUMBERS, min_size=count, max_size=count)))
    size = count * ITEMSIZE[code]
    return Column.of(code, draw(st.binary(min_size=size, max_size=size)))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(NAMES, max_size=5, unique=True))
    indices = st.lists(st.integers(0, len(names) - 1), max_size=4) if names else st.just([])
    return Manifest(
        manifest_id=draw(IDS),
        names=tuple(names),
        numel=draw(columns(len(names)).filter(lambda c: c.code == "<u8"))
        if names
        else Column.of("<u8", b""),
        dtypes=("float32",) * len(names),
        shards=draw(
            st.just(()) | st.lists(SHARDS, min_size=len(names), max_size=len(names)).map(tuple)
        ),
        groups=draw(st.dictionaries(NAMES, indices.map(tuple), max_size=3)),
        order=draw(st.sampled_from(["forward", "registration", "\n"])),
    )


@st.composite
def stats(draw: st.DrawFn) -> Stats:
    count = draw(st.sampled_from([2, 2, 2, 0, 1, 3, 5]))  # the job declares two layers
    parts = draw(st.sampled_from([1, 1, 1, 2, 64]))
    names = st.sampled_from([*COLUMNS_READ, "l2", "of a newer version"])
    return Stats(
        manifest_id=draw(IDS),
        step=draw(STEPS),
        labels=draw(
            st.dictionaries(
                st.sampled_from(["reduction", "point", "x"]),
                st.none() | st.booleans() | NUMBERS | st.sampled_from(["none", "mean"]),
                max_size=2,
            )
        ),
        scalars=draw(st.dictionaries(SCALARS, NUMBERS | STEPS.map(float), max_size=4)),
        columns=draw(st.dictionaries(names, columns(count), max_size=4)),
        part=draw(st.integers(0, parts - 1)),
        parts=parts,
    )


@st.composite
def gains(draw: st.DrawFn) -> Gains:
    blocks = draw(st.sampled_from([(), ("x",), ("x", "y"), ("x", "y", "x", "z")]))
    return Gains(
        step=draw(STEPS), blocks=blocks, norm_type=draw(NAMES), norms=draw(columns(len(blocks)))
    )


RECORDS = st.one_of(
    manifests(),
    stats(),
    stats(),
    stats(),
    st.builds(Event, name=NAMES | st.just("skipped_step"), step=STEPS),
    st.builds(Event, name=st.just("link"), step=STEPS, data=LINKS),
    gains(),
)
RANKS = st.integers(0, 1)
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), RANKS, RECORDS),
        st.tuples(st.just("send"), RANKS, RECORDS),
        st.tuples(st.just("send"), RANKS, RECORDS),
        st.tuples(st.just("gap"), RANKS, st.integers(1, 1 << 62)),
        st.tuples(st.just("bye"), RANKS, NAMES),
    ),
    max_size=25,
)


EXTREMES = (
    *(0.0, -0.0, -1.0, 1.79e308, -1e308, 5e-324, 1e-320, 1e-300, 1e-160, 1e38, 1e154, 1e200),
    *(math.inf, -math.inf, math.nan),
)


def any_number(source: random.Random, usual: float, share: float) -> float:
    """Return a number near the usual one, or with a probability of *share* one at the edge."""
    extreme = source.random() < share or abs(usual) > 1e300
    return source.choice((usual, *EXTREMES)) if extreme else usual * source.uniform(0.9, 1.1)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_overflows_once_it_is_known_what_is_usual(seed: int) -> None:
    """Numbers at the edges of float64, in every column and scalar, before 32 frames and after."""
    source = random.Random(seed)
    world, names = source.choice([1, 2, 3]), ("a.weight", "a.bias", "b.weight")
    job = Cluster(world=world, names=names).start()
    size = source.choice([1.0, 1.0, 1.79e308, 1e-320, 1e150])
    loss = source.choice([2.0, 1.79e308, -1.79e308, -2.0, 0.0, 1e-320])
    share, warm = source.choice([0.02, 0.2, 0.6]), source.choice([0, 40])
    for step in range(warm + 60):
        edge = share if step >= warm else 0.0
        for rank in range(world):
            read = [name for name in COLUMNS_READ if name != "l2" and source.random() < 0.3]
            columns = {name: [any_number(source, size, edge) for _ in names] for name in read}
            scalars = {name: any_number(source, 1.0, edge) for name in ("batch_size", "loss_scale")}
            job.stats(
                rank,
                step,
                [any_number(source, size, edge) for _ in names],
                loss=any_number(source, loss, edge),
                labels={"reduction": "mean"},
                **columns,
                **(scalars if source.random() < 0.5 else {}),
            )
        if source.random() < 0.1:
            job.gains(0, step, *(any_number(source, size, edge) for _ in range(3)))
    json.dumps(jsonable(job.health()), allow_nan=False)
    for alert in job.alerts:
        decode(encode(Envelope(session=SESSION, record=Alert(alert=alert.to_dict()))))


def test_the_largest_numbers_can_be_compared() -> None:
    """Ranks by their local norms, and a norm with the limit of a share."""
    largest = [1.79e308]
    parts = [part_of(largest, rank, local_l2=largest) for rank in range(3)]
    frame = frame_of(*parts)

    assert rising_ranks(frame, np.array([True]), None) == ()
    assert explosion_ranks(frame, 0, 1e308) == (0, 1, 2)


@given(deeds=DEEDS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_no_record_breaks_the_fold_or_what_is_shown_of_it(deeds: list[Any]) -> None:
    job = Cluster(world=2, names=("a", "b"))
    job.rules(exploding={"for_steps": 1}, vanishing={"for_steps": 1}, gain={"for_steps": 1})
    job.start()
    for deed, rank, value in deeds:
        if deed == "send":
            # As it would come: the state sees only what the reader accepts.
            frames = encode(Envelope(session=SESSION, seq=1, low=1, record=value))
            value = decode(frames).record  # noqa: PLW2901 - the same, from the wire
        getattr(job, deed)(rank, value)
    job.wait(6)
    view = view_run(job.state.runs["gpt"])

    for answer in (job.health(), describe_gains(view.gains), describe_groups(view)):
        shown = jsonable(answer)
        assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    for alert in (*job.alerts, *job.attempt.active_alerts.alerts()):
        plain = alert.to_dict()
        json.dumps(jsonable(plain), allow_nan=False)
        decode(encode(Envelope(session=SESSION, record=Alert(alert=plain))))
        assert alert.message.isprintable()
