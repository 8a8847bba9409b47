"""Checksums: whichever bit of a row is another one, it is seen."""

from __future__ import annotations

import pytest

from gradwatch_server.core.state_codec import encode
from gradwatch_server.storage.checksums import (
    is_good_event,
    is_good_row,
    is_good_state,
    of_event,
    of_row,
)

ROW = ("gpt", 0, 7, 9, 1_700_000_000_000_000_000, b"payload")
EVENT = ("a1b2", "firing", "gpt", '{"id": "a1b2", "value": 12.5}')


def flipped(data: bytes) -> list[bytes]:
    number = int.from_bytes(data, "big")
    return [(number ^ 1 << bit).to_bytes(len(data), "big") for bit in range(8 * len(data))]


def test_any_flipped_bit_of_a_row_is_seen() -> None:
    good = of_row(*ROW)
    assert is_good_row(*ROW, good)
    run, *numbers, body = ROW
    bad = [(run, *numbers, data) for data in flipped(body)]
    bad += [(data.decode("latin-1"), *numbers, body) for data in flipped(run.encode())]
    for place in range(4):
        for bit in range(60):
            other = [*numbers]
            other[place] ^= 1 << bit
            bad.append((run, *other, body))

    assert not any(is_good_row(*row, good) for row in bad)
    assert not is_good_row(run, *numbers, "text", good)
    assert not is_good_row(None, *numbers, body, good)


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
