"""What nodes send each other comes out as it went in, or not at all."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwatch_server.cluster.messages.parcels import (
    MAX_GROUPS,
    PART_BYTES,
    Answer,
    Assembler,
    Parcel,
    Sender,
    pack_answers,
    pack_parcels,
    unpack_answers,
    unpack_parcels,
)
from gradwatch_server.errors import GradwatchError
from gradwatch_server.keys import Client

CLIENTS = st.none() | st.builds(Client, st.text(), st.lists(st.text()).map(tuple))
PARCELS = st.lists(st.builds(Parcel, st.binary(), st.lists(st.binary()), CLIENTS))
ANSWERS = st.lists(
    st.builds(
        Answer,
        st.binary(),
        st.binary(),
        st.none() | st.integers(0, 2**63),
        st.lists(st.binary()),
    )
)


@settings(max_examples=30)
@given(st.text(), PARCELS)
def test_parcels_come_out_as_they_went_in(node: str, parcels: list[Parcel]) -> None:
    assert unpack_parcels(pack_parcels(node, parcels)) == (node, parcels)


@settings(max_examples=30)
@given(ANSWERS)
def test_answers_come_out_as_they_went_in(answers: list[Answer]) -> None:
    assert unpack_answers(pack_answers(answers)) == answers


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x90", b"\x92\x01\x02", b"\x91\x01"])
def test_what_is_no_batch_is_an_error(payload: bytes) -> None:
    with pytest.raises(GradwatchError, match="batch of another node"):
        unpack_parcels(payload)
    if payload != b"\x90":  # no answers at all
        with pytest.raises(GradwatchError, match="batch of another node"):
            unpack_answers(payload)


class Line:
    """A subject on which messages can be lost."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, Mapping[str, str]]] = []
        self.taken: list[bytes] = []
        self.sender = Sender("a", self._publish)
        self.assembler = Assembler(self.taken.append)

    def _publish(self, _subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        self.messages.append((payload, headers))

    def arrive(self) -> None:
        for message in self.messages:
            self.assembler.add(*message)
        self.messages.clear()


def test_a_large_payload_goes_in_parts_between_small_ones() -> None:
    line, large = Line(), random.Random(1).randbytes(2 * PART_BYTES + 1)
    for payload in (b"first", large, b"last"):
        line.sender.send("x", payload)
    assert len(line.messages) == 5
    assert all(len(payload) <= PART_BYTES for payload, _ in line.messages)
    line.arrive()
    assert line.taken == [b"first", large, b"last"]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_of_a_payload_of_which_a_part_is_lost_nothing_is_taken(lost: int) -> None:
    line, large = Line(), bytes(2 * PART_BYTES + 1)
    line.sender.send("x", large)
    del line.messages[lost]
    line.arrive()
    assert line.taken == []
    line.sender.send("x", large)
    line.arrive()
    assert line.taken == [large]


def test_parts_that_never_come_take_no_more_than_so_much() -> None:
    line = Line()
    for _ in range(3 * MAX_GROUPS):
        line.sender.send("x", bytes(PART_BYTES + 1))
        del line.messages[-1]
    line.arrive()
    assert len(line.assembler._groups) == MAX_GROUPS


def test_what_a_later_version_says_besides_is_passed_over() -> None:
    """Nodes of two versions are a cluster while it is upgraded."""
    parcels = [Parcel(b"p", [b"f"], Client("ada", ("gpt*",))), Parcel(b"p", [])]
    node, rows = msgpack.unpackb(pack_parcels("a", parcels))
    later = [[peer, frames, of and [*of, 1], {"more": 2}] for peer, frames, of in rows]
    assert unpack_parcels(msgpack.packb([node, later, {"more": 3}])) == ("a", parcels)

    answers = [Answer(b"p", b"s", 7, [b"f"])]
    rows = [[*row, {"more": 1}] for row in msgpack.unpackb(pack_answers(answers))]
    assert unpack_answers(msgpack.packb(rows)) == answers
