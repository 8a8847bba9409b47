"""Whatever the wire lets through, the fold takes, and what it shows of it can be shown."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwatch_server.core.frames import COLUMNS
from gradwatch_wire import Alert, Column, Envelope, Event, Gains, Manifest, Stats, decode, encode
from gradwatch_wire.columns import ITEMSIZE
from gradwatch_wire.jsonable import jsonable
from gradwatch_wire.limits import MAX_STEP

SESSION = bytes(16)
NAMES = st.sampled_from(["a", "b", "c", "", "all", "\x00\x1b[2J", "é" * 200, "\u202e", "l" * 500])
NUMBERS = st.floats() | st.sampled_from(
    [0.0, -0.0, -1.0, 1e308, -1e308, 5e-324, 1e-300, 1e154, float("inf"), float("-inf")]
)
STEPS = st.integers(0, 6) | st.sampled_from([MAX_STEP, MAX_STEP - 1])
IDS = st.sampled_from([1, 1, 1, 2, 3])


@st.composite
def columns(draw: st.DrawFn, count: int) -> Column:
    """Any bits of any dtype."""
    code = draw(st.sampled_from(sorted(ITEMSIZE)))
    if code == "<f8" and draw(st.booleans()):
        return Column.pack(code, draw(st.lists(NUMBERS, min_size=count, max_size=count)))
    size = count * ITEMSIZE[code]
    return Column(code, draw(st.binary(min_size=size, max_size=size)))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(NAMES, max_size=5, unique=True))
    indices = st.lists(st.integers(0, len(names) - 1), max_size=4) if names else st.just([])
    return Manifest(
        manifest_id=draw(IDS),
        names=tuple(names),
        numel=draw(columns(len(names)).filter(lambda c: c.code == "<u8"))
        if names
        else Column("<u8", b""),
        dtypes=("float32",) * len(names),
        groups=draw(st.dictionaries(NAMES, indices.map(tuple), max_size=3)),
        order=draw(st.sampled_from(["forward", "registration", "\n"])),
    )


@st.composite
def stats(draw: st.DrawFn) -> Stats:
    count = draw(st.sampled_from([2, 2, 2, 0, 1, 3, 5]))  # the job declares two layers
    parts = draw(st.sampled_from([1, 1, 1, 2, 64]))
    names = st.sampled_from([*COLUMNS, "l2", "of a newer version"])
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
        scalars=draw(
            st.dictionaries(st.sampled_from(["loss", "local_probe", "lr"]), NUMBERS, max_size=3)
        ),
        columns=draw(st.dictionaries(names, columns(count), max_size=4)),
        part=draw(st.integers(0, parts - 1)),
        parts=parts,
    )


RECORDS = st.one_of(
    manifests(),
    stats(),
    stats(),
    stats(),
    st.builds(Event, name=NAMES, step=STEPS),
    st.builds(
        Gains,
        step=STEPS,
        blocks=st.just(("x",)),
        norm_type=NAMES,
        norms=columns(1),
    ),
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


@given(deeds=DEEDS)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_record_breaks_the_fold_or_what_is_shown_of_it(cluster: Any, deeds: list[Any]) -> None:
    """No exception and no numeric warning; health and alerts are strict JSON and fit the wire."""
    job = cluster(world=2, names=("a", "b"))
    job.rules(exploding={"for_steps": 1}, vanishing={"for_steps": 1})
    job.start()
    for deed, rank, value in deeds:
        if deed == "send":
            # As it would come: the fold sees only what the reader accepts.
            frames = encode(Envelope(session=SESSION, seq=1, low=1, record=value))
            value = decode(frames).record  # noqa: PLW2901 - the same, from the wire
        getattr(job, deed)(rank, value)
    job.wait(6)
    health = jsonable(job.health())

    assert json.loads(json.dumps(health, allow_nan=False)) == health
    for alert in (*job.alerts, *job.attempt.book.alerts()):
        plain = alert.to_dict()
        json.dumps(jsonable(plain), allow_nan=False)
        decode(encode(Envelope(session=SESSION, record=Alert(alert=plain))))
        assert alert.message.isprintable()
