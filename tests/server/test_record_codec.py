"""Decoding in the aggregator: quick for STATS, and alike for all (`tests/wire/test_garbage.py`)."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from gradwatch_server import record_codec
from gradwatch_wire import Column, Envelope, Kind, ProtocolError, Stats, codec, decode, encode

STATS = Stats(
    manifest_id=3,
    step=7,
    labels={"point": "backward", "scaled": False},
    scalars={"loss": 1.5, "lr": 0.1},
    columns={"l2": Column.pack("<f8", [1.0, 2.0]), "zeros": Column.pack("<u8", [0, 5])},
    activations=Column.pack("<f8", [3.0]),
)


def test_statistics_never_reach_the_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Envelope(session=bytes(16), seq=1, low=1, time_ns=5, record=STATS)
    frames = encode(sent)
    monkeypatch.setattr(codec, "decode", None)

    assert record_codec.decode(frames) == sent


COLUMN = ["<f8", 1, bytes(8)]


@pytest.mark.parametrize(
    "body",
    [
        {"scalars": {"loss": 1}},
        {"scalars": {"loss": float("nan")}},
        {"labels": {"é" * 300: 1}},
        {"labels": {"x": "é" * 5_000}},
        {"labels": {"x": b""}},
        {"columns": {"l2": ["<f8", 2, bytes(8)]}},
        {"columns": {"l2": ["<f8", -1, b""]}},
        {"columns": {"l2": ["<f2", 4, bytes(8)]}},
        {"columns": {"l2": COLUMN, "l1": ["<f8", 0, b""]}},
        {"columns": {"l2": [*COLUMN, 1]}},
        {"part": 1},
        {"part": 1, "parts": 2},
        {"activations": ["<f4", 1, bytes(4)]},
        {"activations": None},
        {"unknown": {"x": [1, {"y": None}]}},
        {"unknown": msgpack.ExtType(1, b"")},
        {"step": True},
        {"manifest": 0},
    ],
    ids=repr,
)
def test_both_readers_say_the_same(body: dict[str, Any]) -> None:
    whole = {"manifest": 1, "step": 0} | body
    message = b"\x01" + msgpack.packb([Kind.STATS, bytes(16), 1, 1, 1, whole])

    def outcome(reader: Any) -> str:
        try:
            return repr(reader(message))
        except ProtocolError as error:
            return str(error)

    assert outcome(record_codec.decode) == outcome(decode)
