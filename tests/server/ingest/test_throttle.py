"""Peers that send nonsense are muted for a while, then for good; the others notice nothing."""

from __future__ import annotations

import zmq

from gradwatch_server.ingest.inbox import BURST, MAX_MUTES, MAX_PEERS, MUTE_S, Throttle
from gradwatch_server.ingest.message import IngestMessage
from gradwatch_server.ingest.socket import Ingest
from gradwatch_wire import Bye, Envelope, encode
from tests.support.waiting import wait_until

GOOD = encode(Envelope(session=b"s" * 16, seq=1, low=1, record=Bye()))


def mute(throttle: Throttle, peer: bytes, now_s: float) -> None:
    for _ in range(BURST + 1):
        throttle.count_bad(peer, now_s)
    assert throttle.is_muted(peer, now_s)


def test_a_burst_of_nonsense_is_put_up_with() -> None:
    throttle = Throttle()
    for _ in range(BURST):
        throttle.count_bad(b"a", 0.0)
    assert not throttle.is_muted(b"a", 0.0)
    for second in range(1, 10_000):
        throttle.count_bad(b"a", float(second))
        assert not throttle.is_muted(b"a", float(second))


def test_a_peer_is_muted_for_a_while_and_in_the_end_for_good() -> None:
    """A broken peer may get better; one that does not is never read again."""
    throttle, now_s = Throttle(), 100.0
    for _ in range(MAX_MUTES):
        mute(throttle, b"a", now_s)
        assert throttle.is_muted(b"a", now_s + MUTE_S - 0.1)
        assert not throttle.is_muted(b"a", now_s + MUTE_S)
        now_s += MUTE_S
    mute(throttle, b"a", now_s)

    assert throttle.is_muted(b"a", now_s + 1e9)
    assert not throttle.is_muted(b"b", now_s)


def test_no_more_peers_are_remembered_than_fit() -> None:
    throttle = Throttle()
    mute(throttle, b"first", 0.0)
    mute(throttle, b"second", 0.0)
    for number in range(MAX_PEERS - 1):
        throttle.count_bad(str(number).encode(), 0.0)

    assert len(throttle) == MAX_PEERS
    assert not throttle.is_muted(b"first", 0.0)
    assert throttle.is_muted(b"second", 0.0)


def test_a_flood_of_nonsense_is_not_read_and_a_good_peer_is() -> None:
    ingest = Ingest("tcp://127.0.0.1:0")
    with zmq.Context() as context, context.socket(zmq.DEALER) as bad:
        bad.linger = 0
        bad.connect(ingest.endpoint)
        for _ in range(BURST + 20):
            bad.send(b"\x01junk")
        bad.send(GOOD)
        with context.socket(zmq.DEALER) as good:
            good.linger = 0
            good.connect(ingest.endpoint)
            good.send(GOOD)
            messages: list[IngestMessage] = []

            def all_came() -> bool:
                messages.extend(ingest.receive(50))
                return ingest.refused["throttled"] >= 20 and len(messages) > 0

            wait_until(all_came, "the flood, and the good message")
        ingest.close()

    assert len(messages) == 1
    assert ingest.refused == {"malformed": BURST + 1, "throttled": 20}
