"""Checksums: whichever bit of a row is another one, it is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradwatch_server.core.state_codec import encode
from gradwatch_server.storage.encoding import EncodedEntry
from gradwatch_server.storage.sqlite.checksums import (
    is_good_entry,
    is_good_event,
    is_good_state,
    of_entry,
    of_event,
)

ENTRY = EncodedEntry(1_700_000_000_000_000_000, 3, b"s" * 16, b"payload")
EVENT = ("a1b2", "firing", "gpt", '{"id": "a1b2", "value": 12.5}')


def flipped(data: bytes) -> list[bytes]:
    """Return it with each of its bits flipped."""
    number = int.from_bytes(data, "big")
    return [(number ^ 1 << bit).to_bytes(len(data), "big") for bit in range(8 * len(data))]


def test_any_flipped_bit_of_an_entry_is_seen() -> None:
    good = of_entry(ENTRY)
    assert is_good_entry(ENTRY, good)
    bad = [replace(ENTRY, payload=data) for data in flipped(b"payload")]
    bad += [replace(ENTRY, session=data) for data in flipped(b"s" * 16)]
    bad += [replace(ENTRY, received_ns=ENTRY.received_ns ^ 1 << bit) for bit in range(60)]
    bad += [replace(ENTRY, kind=ENTRY.kind ^ 1 << bit) for bit in range(8)]

    assert not any(is_good_entry(entry, good) for entry in bad)
    assert not is_good_entry(replace(ENTRY, payload="text"), good)  # type: ignore[arg-type]  # damaged


def test_any_other_character_of_an_event_is_seen() -> None:
    good = of_event(*EVENT)
    assert is_good_event(*EVENT, good)
    for place, text in enumerate(EVENT):
        for bad in (data.decode("latin-1") for data in flipped(text.encode("ascii"))):
            other = [*EVENT[:place], bad, *EVENT[place + 1 :]]
            assert not is_good_event(other[0], other[1], other[2], other[3], good)
    assert not is_good_event("a1b2fi", "ring", *EVENT[2:], good)


@pytest.mark.parametrize("plain", [{}, {"created_ns": 1, "names": ["a", "b"]}])
def test_any_flipped_bit_of_saved_state_is_seen(plain: dict[str, object]) -> None:
    saved = encode(plain)
    assert is_good_state(saved)
    assert not any(map(is_good_state, flipped(saved)))
