"""Decoding in the aggregator: quick for STATS and BEAT, alike for all (see test_garbage.py)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest

from gradwatch_server import record_codec
from gradwatch_wire import (
    Beat,
    Column,
    Envelope,
    ProtocolError,
    Record,
    Stats,
    codec,
    decode,
    encode,
)

STATS = Stats(
    manifest_id=3,
    step=7,
    labels={"point": "backward", "scaled": False},
    scalars={"loss": 1.5, "lr": 0.1},
    columns={"l2": Column.pack("<f8", [1.0, 2.0]), "zeros": Column.pack("<u8", [0, 5])},
    activations=Column.pack("<f8", [3.0]),
)


BEAT = Beat(last_step=7, since_s=0.5, counters={"sent": 3}, training=True, shrink=2)


@pytest.mark.parametrize(("seq", "record"), [(1, STATS), (0, BEAT)])
def test_what_comes_most_often_never_reaches_the_slow_reader(
    seq: int, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Envelope(session=bytes(16), seq=seq, low=1, time_ns=5, record=record)
    frames = encode(sent)
    monkeypatch.setattr(codec, "decode", None)

    assert record_codec.decode(frames) == sent


def outcome(reader: Any, message: bytes) -> str:
    """Return what a reader makes of a message: the record, or the error."""
    try:
        return repr(reader(message))
    except ProtocolError as error:
        return str(error)


def mutated(value: Any, numbers: random.Random) -> Any:
    """Return a value with some parts of it in another's place, left out, or of another type."""
    if isinstance(value, dict) and numbers.random() < 0.9:
        items = {key: mutated(item, numbers) for key, item in value.items()}
        if items and numbers.random() < 0.1:
            del items[numbers.choice(list(items))]
        if numbers.random() < 0.1:
            items[numbers.choice(NAMES)] = numbers.choice(VALUES)
        return items
    if isinstance(value, list) and numbers.random() < 0.9:
        return [mutated(item, numbers) for item in value]
    return numbers.choice(VALUES) if numbers.random() < 0.04 else value


VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 63, 64, 1 << 53, (1 << 63) - 1, 1 << 63, 0.5, float("nan")),
    *("", "<f4", "<f8", "é", "x" * 513, "é" * 300, b"", bytes(8), bytes(16), [], {}),
    *(["<f8", 1, bytes(8)], ["<u4", 2, bytes(8)], {"a": 1.0}, {"é": "x"}, [1, 2]),
    *(["<f8", 2, bytes(8)], ["<f8", -1, b""], ["<f2", 4, bytes(8)], msgpack.ExtType(1, b"")),
    *({"x": "é" * 5_000}, {"é" * 300: 1}, {"x": b""}, {"x": [1, {"y": None}]}),
)
NAMES: Final = ("l2", "é", "part", "parts", "history", "batch", "later", "x" * 513)


@pytest.mark.parametrize(
    "count", [5_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.exhaustive])]
)
def test_generated_messages_are_accepted_or_refused_alike(count: int) -> None:
    """By the reader of the wire, and by the quick one that is made from the same tables."""
    numbers = random.Random(count)
    valid = [msgpack.unpackb(own[1:]) for own in map(bytes.fromhex, golden())]
    num_accepted = 0
    for _ in range(count):
        array = mutated(numbers.choice(valid), numbers)
        message = b"\x01" + msgpack.packb(array)
        if numbers.random() < 0.2:
            at = numbers.randrange(1, len(message))
            message = message[:at] + numbers.randbytes(1) + message[at + 1 :]
        found = outcome(record_codec.decode, message)
        assert found == outcome(decode, message), message
        num_accepted += found.startswith("Envelope")
    assert 0.05 * count < num_accepted < 0.95 * count


def golden() -> list[str]:
    """Return the golden messages of all kinds as digits, statistics four times."""
    found: list[str] = []
    for path in sorted((Path(__file__).parents[1] / "wire" / "golden").glob("*.json")):
        for name, digits in json.loads(path.read_text("utf-8")).items():
            found += [digits] * (4 if name.startswith("STATS") else 1)
    return found
