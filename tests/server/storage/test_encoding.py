"""Spelling of entries in a store: nothing that came over the wire is lost or made up."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from gradwatch_server.core.alerting.silences import Silence
from gradwatch_server.core.entries import (
    Acknowledged,
    Entry,
    Opened,
    Received,
    SilenceAdded,
    SilenceRemoved,
)
from gradwatch_server.storage.encoding import RECORD_KINDS, EncodedEntry, decode_entry, encode_entry
from gradwatch_server.storage.rows import LogEntry
from gradwatch_wire import SEQUENCED, Bye, Envelope, Hello, decode, encode
from tests.support.records import stats_of

SESSION = bytes(range(16))


def test_a_record_is_kept_byte_by_byte() -> None:
    """NaN payloads, and keys of a newer version, survive although this one cannot name them."""
    stats = stats_of(1, [float("nan"), float("-inf")])
    fields = msgpack.unpackb(encode(Envelope(session=SESSION, seq=1, low=1, record=stats))[1:])
    fields[5]["of a newer version"] = [1, 2]
    raw = b"\x01" + msgpack.packb(fields)
    encoded = encode_entry(LogEntry("gpt", Entry(1, Received(decode(raw))), raw))

    assert encoded.payload == raw


@pytest.mark.parametrize(
    "head", [b"\xdc\x00\x06\x08", b"\xdd\x00\x00\x00\x06\x08", b"\x96\xcc\x08", b"\x96\xcd\x00\x08"]
)
def test_a_kind_spelt_at_length_is_read_back(head: bytes) -> None:
    """msgpack has several ways to write an array of six and a kind; all of them are valid."""
    raw = encode(Envelope(session=SESSION, seq=1, low=1, record=Bye()))
    raw = raw[:1] + head + raw[3:]
    entry = Entry(1, Received(decode(raw)))

    assert decode_entry(encode_entry(LogEntry("gpt", entry, raw))) == entry


def test_every_sequenced_kind_can_be_logged() -> None:
    """A kind that is added to the wire must be added here, or its records would be refused."""
    assert set(RECORD_KINDS.values()) == SEQUENCED


SILENCE = Silence("5f", "gpt*", "*", "h.*", 1 << 60, 7, "ada", "known, \u2028 and more")


@pytest.mark.parametrize(
    ("body", "kind", "payload"),
    [
        (
            Acknowledged("gpt", 3, "0123456789abcdef", "ada", "é"),
            121,
            (
                b'{"run": "gpt", "attempt": 3, "alert_id": "0123456789abcdef", "by": "ada",'
                b' "comment": "\\u00e9"}'
            ),
        ),
        (
            SilenceAdded(SILENCE),
            122,
            (
                b'{"id": "5f", "run": "gpt*", "rule": "*", "layers": "h.*",'
                b' "until_ns": 1152921504606846976, "created_ns": 7, "by": "ada",'
                b' "comment": "known, \\u2028 and more"}'
            ),
        ),
        (SilenceRemoved("5f"), 123, b"5f"),
    ],
)
def test_what_people_ask_is_kept_as_it_always_was(body: Any, kind: int, payload: bytes) -> None:
    """A change of it is a change of what is stored, and takes the next number of the schema."""
    encoded = encode_entry(LogEntry("gpt", Entry(1, body)))

    assert encoded == EncodedEntry(1, kind, None, payload)
    assert decode_entry(encoded) == Entry(1, body)


def test_a_token_is_not_kept() -> None:
    hello = Hello(run="gpt", rank=0, world=1, host="node", token="hunter2-secret")
    raw = encode(Envelope(session=SESSION, record=hello))
    encoded = encode_entry(LogEntry("gpt", Entry(1, Opened(SESSION, hello)), raw))

    assert b"hunter2" not in (encoded.payload or b"")
    kept = Hello(run="gpt", rank=0, world=1, host="node")
    assert decode_entry(encoded) == Entry(1, Opened(SESSION, kept))


def test_a_record_without_its_bytes_is_a_fault_of_ours() -> None:
    body = Received(Envelope(session=SESSION, seq=1, record=Bye()))
    with pytest.raises(AssertionError, match="needs the bytes"):
        encode_entry(LogEntry("gpt", Entry(1, body)))


@pytest.mark.parametrize(
    "encoded",
    [
        EncodedEntry(1, 4, SESSION, b"\xc1garbage"),
        EncodedEntry(1, 4, SESSION, None),
        EncodedEntry(1, 1, SESSION, b""),
        EncodedEntry(1, 101, SESSION, b"\x90"),
        EncodedEntry(1, 104, None, b"{"),
        EncodedEntry(1, 99, None, None),
    ],
)
def test_what_was_never_written_is_an_error(encoded: EncodedEntry) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is
        decode_entry(encoded)
