"""Any valid record comes back from the wire with all its bits."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradwatch_wire as wire
from gradwatch_wire import limits
from gradwatch_wire.packed_column import ITEMSIZE
from gradwatch_wire.shards import Shard

BRIEFLY = settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
SESSION = b"\xff" * 16

# Text of every plane; its longest forms are exactly as long as the limit in UTF-8.
CHARACTERS = st.characters(exclude_categories=["Cs"])
NAMES = st.text(CHARACTERS, max_size=12) | st.sampled_from(
    ["", "\0", "\U0001d524" * 128, "é" * 256, "a" * limits.MAX_NAME_BYTES, "\u202e", "\ufeff"]
)
TEXTS = NAMES | st.just("\U0010ffff" * (limits.MAX_TEXT_BYTES // 4))
FLOATS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324, -2e-310])
SEQS = st.integers(0, limits.MAX_SEQ) | st.just(limits.MAX_SEQ)
IDS = st.integers(1, limits.MAX_SEQ) | st.just(limits.MAX_SEQ)
STEPS = st.integers(0, limits.MAX_STEP) | st.just(limits.MAX_STEP)
BOOT_IDS = st.binary(min_size=16, max_size=16)
LABELS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | FLOATS | TEXTS
LABEL_MAPS = st.dictionaries(NAMES, LABELS, max_size=4)


def columns(code: str, count: int) -> st.SearchStrategy[wire.Column]:
    size = count * ITEMSIZE[code]
    return st.builds(wire.Column.of, st.just(code), st.binary(min_size=size, max_size=size))


def json_values(depth: int) -> st.SearchStrategy[Any]:
    """JSON-like values nested at most *depth* deep."""
    if depth == 0:
        return LABELS
    inner = json_values(depth - 1)
    return LABELS | st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2)


@st.composite
def hellos(draw: st.DrawFn) -> wire.Hello:
    """A client's greeting."""
    world = draw(st.integers(1, limits.MAX_RANKS))
    return wire.Hello(
        run=draw(NAMES),
        rank=draw(st.integers(0, world - 1)),
        world=world,
        host=draw(NAMES),
        pid=draw(SEQS),
        versions=draw(st.dictionaries(NAMES, TEXTS, max_size=3)),
        job=draw(NAMES),
        token=draw(TEXTS),
        credit=draw(st.booleans()),
        relay=draw(st.booleans()),
        expected=tuple(draw(st.lists(NAMES, max_size=3))),
    )


SHARDS = st.just("") | st.builds(
    lambda piece, more, placement: str(Shard(piece, piece + 1 + more, placement)),
    st.integers(0, 30_000),
    st.integers(0, 30_000),
    st.text(st.characters(codec="utf-8"), max_size=50),
)


@st.composite
def manifests(draw: st.DrawFn) -> wire.Manifest:
    """Manifests of 0 to 5 layers, with and without shards."""
    names = draw(st.lists(NAMES, max_size=5, unique=True))
    count = len(names)
    per_layer = st.lists(NAMES, min_size=count, max_size=count).map(tuple)
    indices = st.lists(st.integers(0, count - 1), max_size=3).map(tuple) if count else st.just(())
    return wire.Manifest(
        manifest_id=draw(IDS),
        names=tuple(names),
        numel=draw(columns("<u8", count)),
        dtypes=draw(per_layer),
        shards=draw(st.lists(SHARDS, min_size=count, max_size=count).map(tuple) | st.just(())),
        columns=draw(st.lists(NAMES, max_size=3).map(tuple)),
        groups=draw(st.dictionaries(NAMES, indices, max_size=2)),
        order=draw(NAMES),
        modules=draw(st.lists(NAMES, max_size=3, unique=True).map(tuple)),
        frozen=draw(st.lists(NAMES, max_size=3).map(tuple)),
        unused=draw(st.lists(NAMES, max_size=3).map(tuple)),
        optimizer=draw(NAMES),
        beta2=draw(st.none() | columns("<f4", count)),
        marks=draw(per_layer | st.just(())),
        meshes=draw(st.dictionaries(NAMES, columns("<u4", 2), max_size=2)),
    )


@st.composite
def stats(draw: st.DrawFn) -> wire.Stats:
    """Statistics of 0 to 4 layers in columns of any code and any bits."""
    count = draw(st.integers(0, 4))
    any_code = st.sampled_from(sorted(ITEMSIZE)).flatmap(lambda code: columns(code, count))
    parts, steps = draw(st.integers(1, 64)), draw(st.integers(0, 3))
    return wire.Stats(
        manifest_id=draw(IDS),
        step=draw(STEPS),
        labels=draw(LABEL_MAPS),
        scalars=draw(st.dictionaries(NAMES, FLOATS, max_size=4)),
        columns=draw(st.dictionaries(NAMES, any_code, max_size=3)),
        part=draw(st.integers(0, parts - 1)),
        parts=parts,
        activations=draw(st.none() | st.integers(0, 3).flatmap(lambda n: columns("<f8", n))),
        last_good_step=draw(st.integers(-1, limits.MAX_STEP)),
        history=draw(st.dictionaries(NAMES, columns("<f8", steps), max_size=2)),
        batch=draw(st.text(CHARACTERS, max_size=12)),
    )


@st.composite
def gains(draw: st.DrawFn) -> wire.Gains:
    """Norms of 0 to 4 blocks."""
    blocks = draw(st.lists(NAMES, max_size=4).map(tuple))
    return wire.Gains(
        step=draw(STEPS),
        blocks=blocks,
        norm_type=draw(NAMES),
        norms=draw(columns("<f8", len(blocks))),
    )


RECORDS: dict[str, st.SearchStrategy[Any]] = {
    "HELLO": hellos(),
    "WELCOME": st.builds(
        wire.Welcome,
        boot_id=BOOT_IDS,
        acked=SEQS,
        max_record_bytes=IDS,
        proto_min=st.integers(0, 255),
        proto_max=st.integers(0, 255),
        http=NAMES,
        max_in_flight_bytes=IDS,
        window_bytes=st.none() | SEQS,
    ),
    "MANIFEST": manifests(),
    "STATS": stats(),
    "GAINS": gains(),
    "EVENT": st.builds(wire.Event, name=NAMES, step=STEPS, data=LABEL_MAPS, text=TEXTS),
    "BEAT": st.builds(
        wire.Beat,
        last_step=st.integers(-1, limits.MAX_STEP),
        since_s=FLOATS,
        counters=st.dictionaries(NAMES, SEQS, max_size=3),
        shrink=SEQS,
        waiting_bytes=SEQS,
    ),
    "BYE": st.builds(wire.Bye, reason=NAMES),
    "ACK": st.builds(
        wire.Ack,
        boot_id=BOOT_IDS,
        acked=SEQS,
        rewind=st.booleans(),
        window_bytes=st.none() | SEQS,
        shrink=SEQS,
        every=st.integers(1, limits.MAX_STEP),
    ),
    "ALERT": st.builds(wire.Alert, alert=st.dictionaries(NAMES, json_values(2), max_size=3)),
    "REFUSE": st.builds(wire.Refuse, reason=TEXTS),
    "REDIRECT": st.builds(wire.Redirect, endpoint=NAMES, reason=TEXTS),
}


@pytest.mark.sampled(5)
@pytest.mark.slow
@pytest.mark.parametrize("kind", list(wire.Kind), ids=lambda kind: kind.name)
@BRIEFLY
@given(data=st.data())
def test_any_valid_record_comes_back_bit_for_bit(
    kind: wire.Kind, bits: Callable[[Any], Any], data: st.DataObject
) -> None:
    """Decoding what was encoded gives the same record, NaN payloads and signs of zero included."""
    envelope = wire.Envelope(
        session=data.draw(st.binary(min_size=16, max_size=16)),
        seq=data.draw(IDS if kind in wire.SEQUENCED else SEQS),
        low=data.draw(SEQS),
        time_ns=data.draw(SEQS),
        record=data.draw(RECORDS[kind.name]),
    )
    message = wire.encode(envelope)
    decoded = wire.decode(message)

    assert bits(envelope) == bits(decoded)
    assert message == wire.encode(decoded)


def test_an_order_that_is_not_given_is_a_plain_string() -> None:
    manifest = wire.Manifest(manifest_id=1, names=(), numel=wire.Column.pack("<u8", []), dtypes=())

    assert type(manifest.order) is str


def test_4000_layers_come_back() -> None:
    """A large model's manifest and statistics fit the limits and lose nothing."""
    count = 4_000
    names = tuple(f"transformer.layers.{index}.attention.weight" for index in range(count))
    manifest = wire.Manifest(
        manifest_id=1,
        names=names,
        numel=wire.Column.pack("<u8", range(count)),
        dtypes=("bfloat16",) * count,
        groups={"all": tuple(range(count))},
    )
    values = wire.Column.pack("<f4", [index / 7 for index in range(count)])
    record = wire.Stats(manifest_id=1, step=1, columns=dict.fromkeys(("l2", "l1", "nan"), values))

    for sent in (manifest, record):
        message = wire.encode(wire.Envelope(session=SESSION, seq=1, record=sent))

        assert sent == wire.decode(message).record
        assert len(message) < limits.MAX_RECORD_BYTES


def test_as_many_layers_as_the_limit_come_back() -> None:
    """The largest manifest by count is read; with one layer more it is refused."""
    for count, fits in ((limits.MAX_LAYERS, True), (limits.MAX_LAYERS + 1, False)):
        manifest = wire.Manifest(
            manifest_id=1,
            names=tuple(map(str, range(count))),
            numel=wire.Column.of("<u8", bytes(8 * count)),
            dtypes=("",) * count,
        )
        message = wire.encode(wire.Envelope(session=SESSION, seq=1, record=manifest))

        if fits:
            assert manifest == wire.decode(message).record
        else:
            with pytest.raises(wire.ProtocolError, match=f"exceeds max_array_len.*{count - 1}"):
                wire.decode(message)


def test_an_alert_nests_as_deep_as_the_limit_and_no_deeper() -> None:
    """Six containers inside each other come back; a seventh around a scalar is refused."""
    value: wire.Json = "leaf"
    for _ in range(limits.MAX_ALERT_DEPTH):
        value = [value]
    deepest = wire.Envelope(session=SESSION, record=wire.Alert(alert={"x": value}))
    deeper = wire.Envelope(session=SESSION, record=wire.Alert(alert={"x": [value]}))

    assert deepest == wire.decode(wire.encode(deepest))
    with pytest.raises(wire.ProtocolError, match="less nesting"):
        wire.decode(wire.encode(deeper))


@pytest.mark.parametrize("training", [None, True, False])
def test_a_beat_says_whether_the_model_trains_or_nothing(training: bool | None) -> None:
    """The key is optional: what does not know it reads the rest."""
    sent = wire.Beat(last_step=3, since_s=0.5, training=training)
    message = wire.encode(wire.Envelope(session=SESSION, record=sent))

    assert wire.decode(message).record == sent
    assert (b"training" in message) is (training is not None)


def test_integers_in_place_of_floats_are_sent_as_floats() -> None:
    """`scalars={"lr": 1}` passes a type checker, so it must not be refused by the aggregator."""
    sent = (wire.Stats(manifest_id=1, step=0, scalars={"lr": 1, "on": True}), wire.Beat(since_s=2))
    received = [
        wire.decode(wire.encode(wire.Envelope(session=SESSION, seq=1, record=record))).record
        for record in sent
    ]

    assert list(sent) == received
    assert isinstance(received[0], wire.Stats)
    assert [float, float] == [type(value) for value in received[0].scalars.values()]
    assert isinstance(received[1], wire.Beat)
    assert float is type(received[1].since_s)


def test_a_packed_body_is_joined_anew_as_low_moves_on() -> None:
    """A record that waits keeps its packed body; only the head around it is written again."""
    record = wire.Event(name="mark", step=3, data={"why": "\U0001d524"})
    kind, body = wire.encode_body(record)
    for low in (1, 1 << 40):
        envelope = wire.Envelope(session=SESSION, seq=9, low=low, time_ns=5, record=record)

        assert wire.encode(envelope) == wire.join(kind, SESSION, 9, low, 5, body)
        assert envelope == wire.decode(wire.join(kind, SESSION, 9, low, 5, body))


VALUES: dict[str, tuple[str, st.SearchStrategy[float]]] = {
    "<f4": ("f", st.floats(width=32)),
    "<f8": ("d", FLOATS),
    "<u4": ("I", st.integers(0, (1 << 32) - 1)),
    "<u8": ("Q", st.integers(0, (1 << 64) - 1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("code", ITEMSIZE)
@BRIEFLY
@given(data=st.data())
def test_a_column_packs_little_endian_and_unpacks_to_the_same_numbers(
    code: str, data: st.DataObject
) -> None:
    """Packing follows the dtype code bit for bit, and unpacking undoes it."""
    letter, numbers = VALUES[code]
    values = data.draw(st.lists(numbers, max_size=8))
    column = wire.Column.pack(code, values)

    assert struct.pack(f"<{len(values)}{letter}", *values) == column.data
    assert len(values) == column.size
    assert [math.isnan(v) or v for v in values] == [math.isnan(v) or v for v in column.unpack()]
    assert column == wire.Column.pack(code, column.unpack())
    assert [type(v) for v in values] == [type(v) for v in column.unpack()]


@pytest.mark.parametrize(
    ("code", "value", "error"),
    [
        ("<u4", 1 << 32, OverflowError),
        ("<u8", 1 << 64, OverflowError),
        ("<u8", -1, OverflowError),
        ("<i4", 0, KeyError),
        ("O", 0, KeyError),
    ],
)
def test_a_column_refuses_what_its_code_cannot_hold(
    code: str, value: int, error: type[Exception]
) -> None:
    """Integers outside the range and codes outside the table are errors, never wrapped values."""
    with pytest.raises(error):
        wire.Column.pack(code, [value])
