"""Any bytes: decoding raises ProtocolError or gives a valid record, in little memory."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradwatch_wire as wire
from gradwatch_server import record_codec
from gradwatch_wire import limits
from gradwatch_wire.field_types import checked_str

FIXTURES_ARE_CONSTANT = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
OFTEN = settings(max_examples=700, suppress_health_check=FIXTURES_ARE_CONSTANT)

PEAK_PER_BYTE = 40
PEAK_CONSTANT = 160 << 10
"""Decoding n bytes takes at most `PEAK_PER_BYTE * n + PEAK_CONSTANT` bytes at its peak: the first
for the smallest objects msgpack can name, the second for its stack, a chain of open containers and
the containers that are allowed."""

SESSION = bytes(16)
VERSION = bytes([wire.PROTOCOL_MAJOR])

Decode = Callable[[bytes], wire.Envelope | None]


@pytest.fixture(scope="session")
def survive(bits: Callable[[Any], Any]) -> Decode:
    """A decode that returns None on ProtocolError; nothing else may be raised.

    The aggregator's own decode does the same with every message.
    """

    def outcome(decode: Callable[[bytes], wire.Envelope], raw: bytes) -> Any:
        try:
            return bits(decode(raw))
        except wire.ProtocolError as error:
            return str(error)

    def decode(raw: bytes) -> wire.Envelope | None:
        assert outcome(record_codec.decode, raw) == outcome(wire.decode, raw)
        try:
            envelope = wire.decode(raw)
        except wire.ProtocolError as error:
            refusal = error
        else:
            # What is accepted is valid: written again, it is read as the same.
            assert bits(envelope) == bits(wire.decode(wire.encode(envelope)))
            return envelope
        # What is logged of a refusal is one inert line, whatever the bytes were.
        assert str(refusal) == f"expected {refusal.expected}, got {refusal.got}, at {refusal.where}"
        assert refusal.expected
        assert refusal.got
        assert refusal.where.startswith(("message", "envelope", *wire.Kind.__members__))
        assert str(refusal).isascii()
        assert str(refusal).isprintable()
        assert len(str(refusal)) < 8_192
        return None

    return decode


def message(kind: int, body: object, **head: object) -> bytes:
    """Return a message whose parts may be anything msgpack can say."""
    parts = {"session": SESSION, "seq": 1, "low": 1, "time_ns": 1} | head
    return VERSION + bytes(msgpack.packb([kind, *parts.values(), body]))


def bye(extra: bytes) -> bytes:
    """Return the array of a BYE with *extra* bytes as the value of an unknown key."""
    frame: bytes = msgpack.packb([wire.Kind.BYE, SESSION, 1, 1, 1, {"x": None}])
    return frame.removesuffix(b"\xc0") + extra


@pytest.mark.slow
@OFTEN
@given(data=st.data())
def test_mutated_bytes_are_refused_or_read(
    golden: dict[str, bytes], survive: Decode, data: st.DataObject
) -> None:
    """Bits flipped, bytes cut, inserted and repeated in valid messages never break the reader."""
    frame = bytearray(golden[data.draw(st.sampled_from(sorted(golden)))][1:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame)))
        end = data.draw(st.integers(at, min(at + 24, len(frame))))
        change = data.draw(st.sampled_from(["flip", "cut", "insert", "repeat", "end"]))
        if change == "flip" and at < len(frame):
            frame[at] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "cut":
            del frame[at:end]
        elif change == "insert":
            frame[at:at] = data.draw(st.binary(min_size=1, max_size=6))
        elif change == "repeat":
            frame[end:end] = frame[at:end] * data.draw(st.integers(1, 3))
        elif change == "end":
            del frame[at:]

    survive(VERSION + bytes(frame))


@pytest.mark.slow
@OFTEN
@given(raw=st.binary(max_size=64) | st.binary().map(VERSION.__add__))
def test_random_bytes_are_refused(raw: bytes, survive: Decode) -> None:
    assert survive(raw) is None


def test_a_mutation_that_leaves_the_message_valid_is_read(
    golden: dict[str, bytes], survive: Decode
) -> None:
    """The reader does not simply refuse everything: a flipped bit of the session is another one."""
    frame = bytearray(golden["BYE"][1:])
    frame[4] ^= 1
    envelope = survive(VERSION + bytes(frame))

    assert envelope is not None
    assert wire.Bye(reason="exception") == envelope.record


def test_of_a_repeated_key_the_last_one_counts() -> None:
    """Msgpack allows a key twice; what it then means is settled."""
    frame: bytes = msgpack.packb([wire.Kind.BYE, SESSION, 1, 1, 1, {"reason": "a", "reasox": "b"}])

    assert wire.Bye(reason="b") == wire.decode(VERSION + frame.replace(b"reasox", b"reason")).record


def map_of_keys(number: int) -> bytes:
    """Return a map of 256 one-character keys that no map of another *number* has."""
    keys = (chr(0x800 + 256 * number + index).encode() for index in range(256))
    return b"\xde\x01\x00" + b"".join(b"\xa3" + key + b"\xd0\x80" for key in keys)


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "2 MB of empty maps": b"\xdd" + struct.pack(">I", 2_000_000) + b"\x80" * 2_000_000,
    "empty maps in arrays": bye(b"\xdc\x01\x90" + (b"\xdc\x10\x00" + b"\x80" * 4096) * 400),
    "2 MB of empty arrays": b"\xdd" + struct.pack(">I", 2_000_000) + b"\x90" * 2_000_000,
    "maps up to the limit": bye(b"\xdc\x00\x4e" + b"\x81\xa0\x80" * 78),
    "1 kB nested deep": bye(b"\x91" * 1_000 + b"\xc0"),
    "2 MB nested deep": bye(b"\x91" * 2_000_000 + b"\xc0"),
    "maps nested deep": bye(b"\x81\xa0" * 1_000 + b"\xc0"),
    "3 kB of array headers that promise 32,768 each": b"\xdc\x80\x00" * 1_000,
    "the same inside a body": bye(b"\xdc\x80\x00" * 900),
    "3 kB of map headers that promise 256 each": bye(b"\xde\x01\x00\xa0" * 750),
    "an array header that promises 2**31": b"\xdd\x7f\xff\xff\xff",
    "a map header that promises 2**31": b"\xdf\x7f\xff\xff\xff",
    "a string header that promises 2**31": bye(b"\xdb\x7f\xff\xff\xff"),
    "a bytes header that promises 2**31": bye(b"\xc6\x7f\xff\xff\xff"),
    "an extension header that promises 2**31": bye(b"\xc9\x7f\xff\xff\xff\x01"),
    "2 MB of short strings": bye(b"\x9f" + (b"\xdc\x80\x00" + b"\xa2\xc4\x80" * 32_768) * 15),
    "2 MB of integers": bye(b"\xdc\x00\x12" + (b"\xdc\x80\x00" + b"\xcd\x7f\xff" * 32_768) * 18),
    "2 MB of short numbers": bye(b"\xdc\x00\x1f" + (b"\xdc\x80\x00" + b"\xd0\x80" * 32_768) * 31),
    "2 MB of nil": bye(b"\xdc\x00\x3f" + (b"\xdc\x80\x00" + b"\xc0" * 32_768) * 63),
    "2 MB of empty extensions": bye(b"\x9f" + (b"\xdc\x80\x00" + b"\xc7\0\1" * 32_768) * 15),
    "maps of distinct keys": bye(b"\xdc\x00\x96" + b"".join(map(map_of_keys, range(150)))),
    "a wide string of 4 kB": bye(b"\xda\x10\x00" + "\U0001d524".encode() + b"a" * 4_092),
    "trailing bytes": bye(b"\xc0" + b"\xc0" * 2_000_000),
    "a name list of the largest size": message(
        wire.Kind.MANIFEST,
        {
            "id": 1,
            "names": [chr(0x100 + i) for i in range(limits.MAX_LAYERS)],
            "numel": ["<u8", 1, bytes(8)],
        },
    )[1:],
    "a manifest of bare names": message(
        wire.Kind.MANIFEST,
        {
            "id": 1,
            "names": [chr(0x100 + i) for i in range(20_000)],
            "numel": ["<u8", 20_000, bytes(160_000)],
            "dtypes": [""] * 20_000,
        },
    )[1:],
}


def _peak_bytes(frame: bytes) -> int:
    tracemalloc.start()
    try:
        with contextlib.suppress(wire.ProtocolError):
            wire.decode(VERSION + frame)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_peak_memory_is_a_small_multiple_of_the_input(name: str) -> None:
    frame = HOSTILE[name]
    # The interpreter's table of interned strings grows by doubling, now and then, whatever adds to
    # it; that is not what a record costs, and does not happen three times running.
    peak = min(_peak_bytes(frame) for _ in range(3))

    assert peak <= PEAK_PER_BYTE * len(frame) + PEAK_CONSTANT


STATS = {"manifest": 1, "step": 0}
MANIFEST = {"id": 1, "names": ["a", "b"], "numel": ["<u8", 2, bytes(16)], "dtypes": ["", ""]}
GAINS = {"step": 0, "blocks": ["a"], "norm_type": "l2", "norms": ["<f8", 1, bytes(8)]}
HELLO = {"run": "r", "rank": 0, "world": 2}
ACK = {"boot_id": bytes(16), "acked": 0}
K = wire.Kind

# A message, then what the error says of them: where, expected, got.
BAD: list[tuple[bytes, str, str, str]] = [
    (b"", "message", "one frame", "none or several"),
    (b"\x02", "message.version", "protocol version 1", "version 2"),
    (VERSION + bytes(limits.MAX_RECORD_BYTES), "message", "at most 2097152 bytes", "2097153 bytes"),
    (VERSION, "envelope", "valid msgpack", "No more data to unpack."),
    (VERSION + b"\xc1", "envelope", "valid msgpack", "FormatError"),
    (VERSION + b"\x91" * 5_000 + b"\xc0", "envelope", "valid msgpack", "StackError"),
    (VERSION + b"\xc0\xc0", "envelope", "valid msgpack", "unpack(b) received extra data."),
    (VERSION + bye(b"\xdc\xff\xff" + bytes(65_535)), "envelope", "valid msgpack", "65535 exceeds"),
    (
        VERSION + bye(b"\xde\x01\x01" + b"\xa0\xc0" * 257),
        "envelope",
        "valid msgpack",
        "257 exceeds max_map_len(256)",
    ),
    (VERSION + bye(b"\xa1\xff"), "envelope", "valid msgpack", "'utf-8' codec can't decode"),
    (VERSION + bye(b"\xa3\xed\xa0\x80"), "envelope", "valid msgpack", "'utf-8' codec can't"),
    (VERSION + bye(b"\x81\x90\xc0"), "envelope", "valid msgpack", "tuple is not allowed for map"),
    (VERSION + bye(b"\x81\x01\xc0"), "envelope", "valid msgpack", "int is not allowed for map"),
    (VERSION + bye(b"\xc7\x00\x07"), "envelope", "no extension type", "type 7"),
    (VERSION + bye(b"\xd4\x07\x00"), "envelope", "valid msgpack", "2 exceeds max_ext_len"),
    (VERSION + bye(b"\xd6\xff" + bytes(4)), "envelope", "valid msgpack", "5 exceeds max_ext_len"),
    (VERSION + bye(b"\xdc\x00\xa0" + b"\x90" * 160), "envelope", "at most 160 arrays", "more"),
    (VERSION + b"\xc0", "envelope", "an array of 6", "NoneType None"),
    (VERSION + b"\x91\xc0", "envelope", "an array of 6", "tuple of 1"),
    (VERSION + b"\x80", "envelope", "an array of 6", "dict of 0"),
    (message(0, {}), "envelope.kind", "a kind 1..12", "int 0"),
    (message(13, {}), "envelope.kind", "a kind 1..12", "int 13"),
    (message(True, {}), "envelope.kind", "a kind 1..12", "bool True"),
    (message(K.BYE, {}, session=b""), "envelope.session", "16 bytes", "0 bytes"),
    (
        message(K.BYE, {}, session="a" * 16),
        "envelope.session",
        "16 bytes",
        "str 'aaaaaaaaaaaaaaaa'",
    ),
    (message(K.BYE, {}, seq=0), "envelope.seq", f"an integer 1..{limits.MAX_SEQ}", "int 0"),
    (message(K.BEAT, {}, seq=1 << 63), "envelope.seq", "an integer 0..", "int 9223372036854775808"),
    (message(K.BEAT, {}, low=-1), "envelope.low", "an integer 0..", "int -1"),
    (message(K.BEAT, {}, time_ns=1.5), "envelope.time_ns", "an integer 0..", "float 1.5"),
    (message(K.BYE, []), "BYE", "a map", "tuple of 0"),
    (message(K.BYE, {"reason": b"x"}), "BYE.reason", "a string of at most 512 bytes", "1 bytes"),
    (message(K.REFUSE, {"reason": "\x1b" * 8_192 + "\n"}), "envelope", "valid msgpack", "8193 exc"),
    (
        message(K.REFUSE, {"reason": "x" * 4_097}),
        "REFUSE.reason",
        "a string of at most 4096",
        "str 'x",
    ),
    (message(K.HELLO, HELLO | {"rank": 2}), "HELLO.rank", "an integer 0..1", "int 2"),
    (
        message(K.HELLO, HELLO | {"world": 65_537}),
        "HELLO.world",
        "an integer 1..65536",
        "int 65537",
    ),
    (
        message(K.HELLO, HELLO | {"versions": {"a\n": 1}}),
        "HELLO.versions.a\\n",
        "a string",
        "int 1",
    ),
    (message(K.HELLO, HELLO | {"versions": {b"a": ""}}), "HELLO.versions", "a string", "1 bytes"),
    (message(K.HELLO, HELLO | {"run": "é" * 257}), "HELLO.run", "a string of at most 512", "str "),
    (message(K.WELCOME, {"boot_id": bytes(15)}), "WELCOME.boot_id", "16 bytes", "15 bytes"),
    (message(K.ACK, ACK | {"rewind": 1}), "ACK.rewind", "a boolean", "int 1"),
    (message(K.BEAT, {"since_s": 1}), "BEAT.since_s", "a float", "int 1"),
    (message(K.BEAT, {"counters": {"a": True}}), "BEAT.counters.a", "an integer 0..", "bool True"),
    (message(K.BEAT, {"counters": []}), "BEAT.counters", "a map of at most 64", "tuple of 0"),
    (
        message(K.STATS, STATS | {"step": 1 << 53}),
        "STATS.step",
        "an integer 0..",
        "int 90071992547",
    ),
    (
        message(K.STATS, STATS | {"columns": {"l2": ["<f4", 2, bytes(4)]}}),
        "STATS.columns.l2.count",
        "a count of 1 for 4 bytes",
        "int 2",
    ),
    (
        message(K.STATS, STATS | {"columns": {"é.x": ["<f4", 1, bytes(5)]}}),
        "STATS.columns.\\xe9.x.count",
        "a count of 1.25 for 5 bytes",
        "int 1",
    ),
    (
        message(K.STATS, STATS | {"columns": {"l2": ["O", 0, b""]}}),
        "STATS.columns.l2.code",
        "a dtype code of <f4 <f8 <u4 <u8",
        "str 'O'",
    ),
    (
        message(K.STATS, STATS | {"columns": {"l2": [["<f4"], 0, b""]}}),
        "STATS.columns.l2.code",
        "a dtype code",
        "tuple of 1",
    ),
    (
        message(K.STATS, STATS | {"columns": {"l2": ["<f4", 0, ""]}}),
        "STATS.columns.l2.data",
        "bytes",
        "str ''",
    ),
    (
        message(K.STATS, STATS | {"columns": {"l2": ["<f4", True, bytes(4)]}}),
        "STATS.columns.l2.count",
        "a count of 1",
        "bool True",
    ),
    (
        message(K.STATS, STATS | {"columns": {"l2": ["<f4", 0]}}),
        "STATS.columns.l2",
        "[code, count, bytes]",
        "tuple of 2",
    ),
    (
        message(K.STATS, STATS | {"columns": {"a": ["<f4", 1, b"abcd"], "b": ["<f4", 0, b""]}}),
        "STATS.columns",
        "columns of one count",
        "several counts",
    ),
    (
        message(K.STATS, STATS | {"columns": {"a": ["<f4", 32_769, bytes(4 * 32_769)]}}),
        "STATS.columns",
        "at most 32768 layers",
        "32769",
    ),
    (
        message(K.STATS, STATS | {"columns": {str(i): ["<f4", 0, b""] for i in range(33)}}),
        "STATS.columns",
        "a map of at most 32 keys",
        "dict of 33",
    ),
    (message(K.STATS, STATS | {"scalars": {"lr": 1}}), "STATS.scalars.lr", "a float", "int 1"),
    (message(K.STATS, STATS | {"labels": {"p": []}}), "STATS.labels.p", "a scalar", "tuple of 0"),
    (message(K.STATS, STATS | {"part": 1}), "STATS.part", "an integer 0..0", "int 1"),
    (message(K.STATS, STATS | {"parts": 65}), "STATS.parts", "an integer 1..64", "int 65"),
    (
        message(K.STATS, STATS | {"activations": ["<f4", 1, bytes(4)]}),
        "STATS.activations.code",
        "<f8",
        "<f4",
    ),
    (
        message(K.STATS, STATS | {"activations": ["<f8", 4097, bytes(8 * 4097)]}),
        "STATS.activations",
        "at most 4096 modules",
        "4097",
    ),
    (message(K.STATS, STATS | {"activations": 1.0}), "STATS.activations", "[code", "float"),
    (
        message(K.MANIFEST, MANIFEST | {"modules": ["b", "b"]}),
        "MANIFEST.modules",
        "distinct module names",
        "a repeated one",
    ),
    (
        message(K.MANIFEST, MANIFEST | {"modules": ["b"] * 4097}),
        "MANIFEST.modules",
        "an array of at most 4096 items",
        "tuple of 4097",
    ),
    (message(K.GAINS, GAINS | {"blocks": []}), "GAINS.norms.count", "a count of 0", "1"),
    (message(K.GAINS, GAINS | {"blocks": "a"}), "GAINS.blocks", "an array of at most 4096", "str"),
    (message(K.GAINS, GAINS | {"blocks": [1]}), "GAINS.blocks", "a string", "int 1"),
    (
        message(K.MANIFEST, MANIFEST | {"names": ["a", "a"]}),
        "MANIFEST.names",
        "distinct layer names",
        "a repeated one",
    ),
    (message(K.MANIFEST, MANIFEST | {"names": ["a"]}), "MANIFEST.numel.count", "a count of 1", "2"),
    (
        message(K.MANIFEST, MANIFEST | {"numel": ["<f8", 2, bytes(16)]}),
        "MANIFEST.numel.code",
        "<u8",
        "<f8",
    ),
    (message(K.MANIFEST, MANIFEST | {"dtypes": []}), "MANIFEST.dtypes", "2 items", "0"),
    (message(K.MANIFEST, MANIFEST | {"shards": [""]}), "MANIFEST.shards", "2 items", "1"),
    (
        message(K.MANIFEST, MANIFEST | {"groups": {"é": [0, 2]}}),
        "MANIFEST.groups.\\xe9",
        "indices below 2",
        "a larger one",
    ),
    (
        message(K.MANIFEST, MANIFEST | {"groups": {"seed": [-1]}}),
        "MANIFEST.groups.seed",
        "an integer 0..32767",
        "int -1",
    ),
    (
        message(K.MANIFEST, MANIFEST | {"groups": {"seed": [0, 1, True]}}),
        "MANIFEST.groups.seed",
        "an integer 0..32767",
        "bool",
    ),
    (
        message(K.MANIFEST, MANIFEST | {"groups": {"seed": [0, 1.0]}}),
        "MANIFEST.groups.seed",
        "an integer 0..32767",
        "float",
    ),
    (message(K.EVENT, {"name": "x", "step": -1}), "EVENT.step", "an integer 0..", "int -1"),
    (message(K.ALERT, {"alert": {"a": {"b": b""}}}), "ALERT.alert.a", "a scalar", "0 bytes"),
    (message(K.ALERT, {"alert": {"a": {b"b": 1}}}), "ALERT.alert.a", "a string", "1 bytes"),
    (message(K.ALERT, {"alert": {"a": [[[[[[[1]]]]]]]}}), "ALERT.alert.a", "less nesting", "int 1"),
]


@pytest.mark.parametrize(("raw", "where", "expected", "got"), BAD)
def test_an_error_names_the_place_what_was_expected_and_what_was_there(
    raw: bytes, where: str, expected: str, got: str, survive: Decode
) -> None:
    with pytest.raises(wire.ProtocolError) as caught:
        wire.decode(raw)

    assert where == caught.value.where
    assert caught.value.expected.startswith(expected)
    assert caught.value.got.startswith(got)
    assert survive(raw) is None


def test_a_reader_may_set_a_smaller_limit(golden: dict[str, bytes]) -> None:
    """A frame of exactly the limit is read, one byte less of limit refuses it unparsed."""
    size = len(golden["STATS"])

    assert wire.decode(golden["STATS"], max_record_bytes=size).seq == 2
    with pytest.raises(wire.ProtocolError, match=f"at most {size - 1} bytes, got {size} bytes"):
        wire.decode(golden["STATS"], max_record_bytes=size - 1)


@pytest.mark.parametrize("fits", ["a" * 512, "é" * 256, "\U0001d524" * 128, "aé" * 170 + "aa", ""])
def test_text_is_measured_in_bytes_of_utf_8(fits: str) -> None:
    """A string of exactly the limit is taken, one character more is not."""
    assert fits == checked_str(fits, "here", len(fits.encode()))
    with pytest.raises(wire.ProtocolError, match="a string of at most"):
        checked_str(fits + "a", "here", len(fits.encode()))


def test_text_with_a_lone_surrogate_is_refused_by_the_sender_too() -> None:
    """Python's own half characters, as in undecodable host names, do not get on the wire."""
    with pytest.raises(
        wire.ProtocolError, match=r"text without lone surrogates, got str 'a\\udc80'"
    ):
        checked_str("a\udc80", "here", 512)


def test_an_error_stays_short_whatever_was_sent() -> None:
    """A long value appears by its beginning only."""
    with pytest.raises(wire.ProtocolError) as caught:
        wire.decode(message(K.HELLO, HELLO | {"run": "\U0001d524" * 1_000}))

    assert len(caught.value.got) < 80


def test_fields_of_an_envelope_are_read_in_their_places() -> None:
    """Session, seq, low and time are not mixed up."""
    raw = message(K.BYE, {}, session=b"0123456789abcdef", seq=5, low=3, time_ns=7)
    expected = wire.Envelope(
        session=b"0123456789abcdef", seq=5, low=3, time_ns=7, record=wire.Bye(reason="closed")
    )

    assert expected == wire.decode(raw)
    assert dataclasses.replace(expected, low=4) != wire.decode(raw)
