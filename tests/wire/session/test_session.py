"""A session of a process that lives, driven by hand: no socket, and the time is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gradwatch_wire import (
    Ack,
    Alert,
    Beat,
    Bye,
    Column,
    Envelope,
    Event,
    Hello,
    Manifest,
    Record,
    Refuse,
    Welcome,
    decode,
)
from gradwatch_wire.limits import MAX_MANIFESTS
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session, SessionPhase
from gradwatch_wire.session.timing import ACK_TIMEOUT_S, BEAT_EVERY_S, HELLO_EVERY_S, MAX_IN_FLIGHT

SESSION = b"s" * 16
BOOT, OTHER_BOOT = b"b" * 16, b"o" * 16
HELLO = Hello(run="test", rank=0, world=1, credit=True)


def event(number: int, padding: int = 0) -> Event:
    """A record that is recognised by its step."""
    return Event(name="x" * padding, step=number)


def manifest(number: int) -> Manifest:
    names = (f"layer {number}",)
    numel = Column.pack("<u8", [1])
    return Manifest(manifest_id=number, names=names, numel=numel, dtypes=("float32",))


class Client:
    """A session at the end of a wire, with a clock that the test moves."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.outbox = Outbox(max_bytes)
        self.session = Session(SESSION, HELLO, self.outbox)
        self.now_s = 1000.0

    def greeting(self) -> Hello | None:
        frames = self.session.due(self.now_s)
        if frames is None:
            return None
        self.session.greeted(self.now_s)
        record = decode(frames).record
        assert isinstance(record, Hello)
        return record

    def receive(self, record: Record, session: bytes = SESSION) -> None:
        self.session.receive(Envelope(session=session, record=record), self.now_s)

    def welcome(self, acked: int = 0, boot_id: bytes = BOOT, most: int = 1 << 20) -> None:
        self.receive(Welcome(boot_id=boot_id, acked=acked, max_record_bytes=most))

    def ack(self, acked: int, boot_id: bytes = BOOT, *, rewind: bool = False) -> None:
        self.receive(Ack(boot_id=boot_id, acked=acked, rewind=rewind))

    def credit_beat(self) -> Beat | None:
        """The BEAT that goes out now for the sake of credit, if one does."""
        frames = self.session.credit_beat(self.now_s)
        if frames is None:
            return None
        record = decode(frames).record
        assert isinstance(record, Beat)
        return record

    def send(self) -> list[Envelope]:
        out = []
        while (frames := self.session.peek()) is not None:
            out.append(decode(frames))
            self.session.sent()
        return out

    def produce(self, *records: Record) -> None:
        for record in records:
            assert self.outbox.append(record, time_ns=7)

    def waiting(self) -> list[tuple[int, int]]:
        """Numbers and manifest ids of the manifests that go out now."""
        return [
            (e.seq, e.record.manifest_id) for e in self.send() if isinstance(e.record, Manifest)
        ]


@pytest.fixture
def client() -> Client:
    """A client that has not greeted yet."""
    return Client()


@pytest.fixture
def welcomed() -> Client:
    made = Client()
    made.greeting()
    made.welcome()
    return made


def seqs(envelopes: list[Envelope]) -> list[int]:
    return [envelope.seq for envelope in envelopes]


def test_hello_is_said_at_once_and_again_until_welcome(client: Client) -> None:
    client.produce(event(1))
    assert client.greeting() == HELLO
    assert client.greeting() is None
    client.now_s += HELLO_EVERY_S - 0.01
    assert client.greeting() is None
    assert client.send() == []
    assert client.session.beat(0, 0.0, client.now_s) is None
    client.now_s += 0.01
    assert client.greeting() == HELLO

    client.welcome()
    client.now_s += 10 * HELLO_EVERY_S
    assert seqs(client.send()) == [1]


def test_a_hello_that_the_socket_did_not_take_is_due_again_at_once(client: Client) -> None:
    assert client.session.due(client.now_s) is not None
    assert client.session.due(client.now_s) is not None
    client.session.greeted(client.now_s)
    assert client.session.due(client.now_s) is None


def test_records_go_out_in_order_with_what_can_still_be_supplied(welcomed: Client) -> None:
    """Numbers from 1 without gaps; `low` follows the acknowledgements."""
    welcomed.produce(event(10), event(11))
    first = welcomed.send()
    welcomed.ack(1)
    welcomed.produce(event(12))
    second = welcomed.send()

    assert [(e.seq, e.low, e.record) for e in first + second] == [
        *((1, 1, event(10)), (2, 1, event(11)), (3, 2, event(12)))
    ]
    assert {(e.session, e.time_ns) for e in first + second} == {(SESSION, 7)}


def test_what_the_socket_did_not_take_stays(welcomed: Client) -> None:
    """Looking at the next record does not move on."""
    welcomed.produce(event(1), event(2))

    assert welcomed.session.peek() == welcomed.session.peek()
    assert seqs(welcomed.send()) == [1, 2]


def test_an_acknowledgement_releases_what_it_covers(welcomed: Client) -> None:
    """Pending, drained and the counters follow."""
    welcomed.produce(event(1), event(2), event(3))
    welcomed.send()
    assert (welcomed.outbox.pending, welcomed.session.is_drained) == (3, False)
    welcomed.ack(2)
    assert (welcomed.outbox.pending, welcomed.session.is_drained) == (1, False)
    welcomed.ack(3)
    welcomed.ack(1)  # an older one that comes late changes nothing

    assert (welcomed.outbox.pending, welcomed.session.is_drained) == (0, True)
    assert welcomed.session.counters == {"sent": 3, "acked": 3, "evicted": 0}
    assert welcomed.send() == []


def test_only_so_many_records_are_on_their_way(welcomed: Client) -> None:
    """Acknowledgements make room for as many as they cover."""
    welcomed.produce(*map(event, range(2 * MAX_IN_FLIGHT)))
    assert seqs(welcomed.send()) == list(range(1, MAX_IN_FLIGHT + 1))
    welcomed.ack(10)
    assert seqs(welcomed.send()) == list(range(MAX_IN_FLIGHT + 1, MAX_IN_FLIGHT + 11))


def test_only_so_many_bytes_are_on_their_way(client: Client) -> None:
    client.greeting()
    client.receive(Welcome(boot_id=BOOT, max_in_flight_bytes=2_200))
    client.produce(*(event(number, 400) for number in range(1, 6)))
    client.produce(Event(name="large", step=6, data={"text": "x" * 2_000}), event(7))
    assert seqs(client.send()) == [1, 2]
    client.ack(1)
    assert seqs(client.send()) == [3]
    client.ack(3, rewind=True)
    assert seqs(client.send()) == [4, 5]
    client.ack(4)
    assert seqs(client.send()) == []
    client.ack(5)
    assert seqs(client.send()) == [6]
    client.ack(6)
    assert seqs(client.send()) == [7]


def test_a_window_in_bytes_is_kept_to(client: Client) -> None:
    """A record that does not fit waits, is told of once, and goes out with a wider window."""
    client.greeting()
    client.receive(Welcome(boot_id=BOOT, window_bytes=2_200))
    client.produce(*(event(number, 400) for number in range(1, 6)))
    assert seqs(client.send()) == [1, 2]
    beat = client.credit_beat()
    assert beat is not None
    assert 960 < beat.waiting_bytes < 1_100
    assert client.credit_beat() is None
    client.receive(Ack(boot_id=BOOT, acked=1, window_bytes=1_240))
    assert seqs(client.send()) == []
    client.receive(Ack(boot_id=BOOT, acked=1, window_bytes=3_200))
    assert seqs(client.send()) == [3, 4]
    client.now_s += BEAT_EVERY_S
    beat = client.credit_beat()
    assert beat is not None
    assert beat.waiting_bytes


def test_a_window_of_nothing_lets_nothing_out(client: Client) -> None:
    """Not even one record, which is sent at any time where the aggregator knows no credit."""
    client.greeting()
    client.receive(Welcome(boot_id=BOOT, window_bytes=0))
    client.produce(event(1))
    assert client.send() == []
    client.receive(Ack(boot_id=BOOT, acked=0, window_bytes=1_000))
    assert seqs(client.send()) == [1]


def test_a_smaller_window_is_confirmed_at_once(client: Client) -> None:
    client.greeting()
    client.receive(Welcome(boot_id=BOOT, window_bytes=5_000))
    client.receive(Ack(boot_id=BOOT, acked=0, window_bytes=2_000, shrink=1))
    beat = client.credit_beat()
    assert beat is not None
    assert (beat.shrink, beat.waiting_bytes) == (1, 0)
    client.receive(Ack(boot_id=BOOT, acked=0, window_bytes=2_500, shrink=1))
    assert client.credit_beat() is None
    client.receive(Welcome(boot_id=OTHER_BOOT, window_bytes=5_000))
    client.receive(Ack(boot_id=OTHER_BOOT, acked=0, window_bytes=0, shrink=1))
    assert client.credit_beat() is not None


def test_an_aggregator_that_does_not_say_gets_no_more_than_was_agreed(welcomed: Client) -> None:
    big = Client(64 << 20)
    big.greeting()
    big.welcome(most=2 << 20)
    texts = {f"k{n}": "v" * 4_000 for n in range(32)}
    big.produce(*(Event(name="x", step=n, data=texts) for n in range(100)))
    sent = big.send()

    assert 8 * (1 << 20) - 140_000 < 128_000 * len(sent) <= 8 * (1 << 20)
    assert welcomed.send() == []


def test_a_rewind_sends_again_from_there_once_per_place(welcomed: Client) -> None:
    welcomed.produce(*map(event, range(1, 6)))
    welcomed.send()
    welcomed.ack(2, rewind=True)
    assert seqs(welcomed.send()) == [3, 4, 5]
    welcomed.ack(2, rewind=True)
    welcomed.ack(2, rewind=True)
    assert welcomed.send() == []

    welcomed.ack(3, rewind=True)
    assert seqs(welcomed.send()) == [4, 5]


def test_an_acknowledgement_of_another_start_makes_it_greet_at_once(welcomed: Client) -> None:
    """The aggregator restarted; its WELCOME says from where to go on."""
    welcomed.produce(*map(event, range(1, 5)))
    welcomed.send()
    welcomed.ack(1)
    welcomed.ack(0, OTHER_BOOT)
    assert welcomed.send() == []
    assert welcomed.greeting() == HELLO
    welcomed.ack(0, OTHER_BOOT)
    assert welcomed.greeting() is None

    welcomed.welcome(acked=2, boot_id=OTHER_BOOT)
    assert seqs(welcomed.send()) == [3, 4]
    welcomed.ack(4, OTHER_BOOT)
    assert welcomed.session.is_drained


def test_a_rewind_at_the_same_place_counts_anew_after_a_welcome(welcomed: Client) -> None:
    """The place is one of that start of the aggregator."""
    welcomed.produce(event(1), event(2))
    welcomed.send()
    welcomed.ack(0, rewind=True)
    welcomed.send()
    welcomed.welcome(acked=0)
    welcomed.send()
    welcomed.ack(0, rewind=True)

    assert seqs(welcomed.send()) == [1, 2]


def test_a_second_welcome_that_crosses_acknowledgements_does_not_stop_it(client: Client) -> None:
    client.produce(event(1), event(2))
    client.greeting()
    client.now_s += HELLO_EVERY_S
    client.greeting()
    client.welcome()
    client.send()
    client.welcome()
    client.ack(2)
    client.produce(event(3))

    assert seqs(client.send()) == [3]


def test_silence_opens_the_session_anew(welcomed: Client) -> None:
    welcomed.produce(event(1), event(2))
    welcomed.send()
    welcomed.ack(1)
    welcomed.now_s += ACK_TIMEOUT_S
    assert welcomed.greeting() is None
    welcomed.now_s += 0.1
    assert welcomed.greeting() == HELLO
    welcomed.welcome(acked=1)

    assert seqs(welcomed.send()) == [2]


def test_having_nothing_to_send_is_not_silence(welcomed: Client) -> None:
    """The time counts from when something was on its way."""
    welcomed.now_s += 100 * ACK_TIMEOUT_S
    assert welcomed.greeting() is None
    welcomed.produce(event(1))
    welcomed.send()
    welcomed.now_s += ACK_TIMEOUT_S - 0.1
    assert welcomed.greeting() is None
    welcomed.now_s += 0.2
    assert welcomed.greeting() == HELLO


def test_acknowledgements_that_do_not_move_on_do_not_hide_that_it_is_stuck(
    welcomed: Client,
) -> None:
    welcomed.produce(event(1), event(2))
    welcomed.send()
    for _ in range(6):
        welcomed.ack(0)
        welcomed.now_s += ACK_TIMEOUT_S / 5

    assert welcomed.greeting() == HELLO


def test_a_beat_is_due_every_two_seconds(welcomed: Client) -> None:
    welcomed.produce(event(1))
    welcomed.send()
    frames = welcomed.session.beat(41, 0.5, welcomed.now_s)
    assert frames is not None
    beat = decode(frames)

    counters = {"sent": 1, "acked": 0, "evicted": 0}
    assert beat.record == Beat(last_step=41, since_s=0.5, counters=counters)
    assert beat.seq == 0
    frames = welcomed.session.beat(41, 2.5, welcomed.now_s + 2 * BEAT_EVERY_S, lambda: False)
    assert frames is not None
    assert decode(frames).record == replace(beat.record, since_s=2.5, training=False)
    welcomed.session._beat_at_s = welcomed.now_s
    assert welcomed.session.beat(41, 0.5, welcomed.now_s + BEAT_EVERY_S - 0.01) is None
    assert welcomed.session.beat(41, 0.5, welcomed.now_s + BEAT_EVERY_S) is not None


def test_a_full_buffer_loses_the_oldest_and_says_so() -> None:
    """`low` tells the aggregator what cannot be supplied any more."""
    small = Client(max_bytes=4000)
    small.greeting()
    small.produce(*(event(number, padding=400) for number in range(1, 21)))
    small.welcome()
    sent = small.send()

    assert seqs(sent) == list(range(20 - len(sent) + 1, 21))
    assert 5 < len(sent) < 10
    assert {e.low for e in sent} == {sent[0].seq}
    assert small.session.counters["evicted"] == 20 - len(sent)


def test_an_outage_that_evicts_more_than_may_be_on_its_way_comes_to_an_end() -> None:
    small = Client(max_bytes=20_000)
    small.greeting()
    small.welcome()
    small.produce(*map(event, range(10)))
    small.send()
    small.ack(10)
    small.produce(*map(event, range(10 * MAX_IN_FLIGHT)))
    small.ack(10, OTHER_BOOT)
    small.greeting()
    small.welcome(acked=10, boot_id=OTHER_BOOT)
    sent = small.send()

    assert len(sent) == MAX_IN_FLIGHT
    assert sent[0].seq == sent[0].low > 10 + MAX_IN_FLIGHT


def test_records_evicted_on_their_way_are_not_sent_again() -> None:
    """The place moves on to what is left."""
    small = Client(max_bytes=1000)
    small.greeting()
    small.welcome()
    small.produce(event(1, padding=400))
    small.produce(event(2, padding=400))
    small.send()
    small.produce(event(3, padding=400))
    small.ack(0, rewind=True)

    assert seqs(small.send()) == [2, 3]


def test_a_manifest_outlives_an_outage_that_evicts_all_around_it() -> None:
    """Records that wait can be read: their manifest goes before them."""
    small = Client(max_bytes=4000)
    small.greeting()
    small.produce(manifest(1), *(event(number, padding=400) for number in range(2, 40)))
    small.welcome()
    (first,) = small.send()
    small.ack(1)
    rest = small.send()

    assert (first.record, first.seq, first.low) == (manifest(1), 1, 1)
    assert {e.low for e in rest} == {rest[0].seq}
    assert len(rest) == 39 - rest[0].seq + 1 == 38 - small.session.counters["evicted"]
    assert [e.record.step for e in rest if isinstance(e.record, Event)][-1] == 39


def test_a_new_log_is_told_the_manifests_before_what_refers_to_them(welcomed: Client) -> None:
    welcomed.produce(manifest(1), event(2), manifest(2), event(4))
    welcomed.send()
    welcomed.ack(4)
    welcomed.produce(event(5))
    welcomed.ack(0, OTHER_BOOT)
    welcomed.greeting()
    welcomed.welcome(acked=0, boot_id=OTHER_BOOT)
    sent = []
    for _ in range(3):  # what comes after a gap waits until all before it is acknowledged
        sent += welcomed.send()
        welcomed.ack(sent[-1].seq, OTHER_BOOT)

    assert [e.record for e in sent] == [manifest(1), manifest(2), event(5)]
    assert [(e.seq, e.low) for e in sent] == [(1, 1), (3, 3), (5, 5)]


def test_what_comes_after_a_lost_number_waits_for_what_is_before_it(welcomed: Client) -> None:
    """Else `low` would give up a record that is on its way."""
    welcomed.produce(event(1))
    welcomed.outbox.skip(2)
    welcomed.produce(event(4), event(5))

    assert [(e.seq, e.low) for e in welcomed.send()] == [(1, 1)]
    welcomed.ack(1)
    assert [(e.seq, e.low) for e in welcomed.send()] == [(4, 4), (5, 4)]


def test_a_manifest_does_not_hide_the_loss_of_a_record_that_gave_way() -> None:
    """The aggregator had stored the manifest, but its answer was lost; not the record."""
    small = Client(max_bytes=1000)
    small.greeting()
    small.welcome()
    small.produce(manifest(1), event(2, padding=400))
    small.send()
    small.produce(event(3, padding=400), event(4, padding=400))
    small.welcome(acked=1, boot_id=OTHER_BOOT)
    sent = small.send()

    assert small.session.counters["evicted"] == 1
    assert [(e.seq, e.low, e.record.step) for e in sent if isinstance(e.record, Event)] == [
        *((3, 3, 3), (4, 3, 4))
    ]


def test_a_new_log_is_told_a_manifest_that_waits_only_once(welcomed: Client) -> None:
    """Else there would be no number left for one that was acknowledged."""
    welcomed.produce(manifest(1), manifest(2), event(3))
    welcomed.send()
    welcomed.ack(1)
    welcomed.ack(0, OTHER_BOOT)
    welcomed.greeting()
    welcomed.welcome(acked=0, boot_id=OTHER_BOOT)

    assert [e.record for e in welcomed.send()] == [manifest(1), manifest(2), event(3)]


def test_a_restart_with_the_same_log_needs_no_manifest_again(welcomed: Client) -> None:
    welcomed.produce(manifest(1), event(2))
    welcomed.send()
    welcomed.ack(2)
    welcomed.produce(event(3))
    welcomed.welcome(acked=2, boot_id=OTHER_BOOT)

    assert [e.record for e in welcomed.send()] == [event(3)]


def test_manifests_without_end_are_not_all_kept(welcomed: Client) -> None:
    """A model that skips layers at random declares a new set every step."""
    count = 3 * MAX_MANIFESTS
    for number in range(1, count + 1):
        welcomed.produce(manifest(number))
        welcomed.send()
        welcomed.ack(number)
    welcomed.welcome(acked=0, boot_id=OTHER_BOOT)

    kept = range(count - MAX_MANIFESTS + 1, count + 1)
    assert welcomed.waiting() == [(number, number) for number in kept]


def test_a_record_larger_than_the_aggregator_reads_is_left_out(welcomed: Client) -> None:
    """It would be refused for ever. Its number counts as lost, which `low` says."""
    welcomed.welcome(most=1000)
    assert not welcomed.outbox.append(Event(name="mark", step=1, data={"x": "y" * 1000}), 0)
    welcomed.produce(event(2))

    assert [(e.seq, e.low, e.record) for e in welcomed.send()] == [(2, 2, event(2))]
    assert welcomed.session.counters["oversize"] == 1


def test_what_is_just_small_enough_stays_below_the_limit_on_the_wire(welcomed: Client) -> None:
    """The envelope around the body counts."""
    most = 1000
    welcomed.welcome(most=most)
    sizes = []
    for padding in range(850, 1000):
        if welcomed.outbox.append(event((1 << 53) - 1, padding), time_ns=(1 << 63) - 1):
            message = welcomed.session.peek()
            assert message is not None
            sizes.append(len(message))
            welcomed.session.sent()

    assert most - 64 < max(sizes) <= most


def test_a_refused_session_stops_and_does_not_hold_up_the_end(client: Client) -> None:
    """The reason is kept; later answers are ignored."""
    client.produce(event(1))
    client.greeting()
    client.receive(Refuse(reason="the run name is taken"))
    client.welcome()
    client.now_s += 100

    assert client.session.phase is SessionPhase.REFUSED
    assert client.session.refused == "the run name is taken"
    assert client.session.is_drained
    assert client.greeting() is None
    assert client.send() == []
    assert client.session.beat(1, 0.0, client.now_s) is None


def test_answers_for_another_session_are_ignored(welcomed: Client) -> None:
    """An aggregator that mixes sessions up must not make this one lose records."""
    welcomed.produce(event(1))
    welcomed.send()
    welcomed.receive(Ack(boot_id=BOOT, acked=1), session=b"x" * 16)
    welcomed.receive(Refuse(reason="no"), session=b"x" * 16)

    assert (welcomed.outbox.pending, welcomed.session.phase) == (1, SessionPhase.OPEN)


@pytest.mark.parametrize(
    "answer",
    [lambda: Ack(boot_id=BOOT, acked=1 << 40), lambda: Welcome(boot_id=BOOT, acked=1 << 40)],
)
def test_an_acknowledgement_of_what_never_was_does_not_stop_the_session(
    welcomed: Client, answer: Callable[[], Record]
) -> None:
    """An aggregator that does so is mistaken; what comes next is sent all the same."""
    welcomed.produce(event(1), event(2))
    welcomed.send()
    welcomed.receive(answer())
    welcomed.produce(event(3))

    assert seqs(welcomed.send()) == [3]


def test_alerts_are_kept_for_the_one_who_asks(welcomed: Client) -> None:
    welcomed.receive(Alert(alert={"id": "a"}))
    welcomed.receive(Alert(alert={"id": "b"}))

    assert welcomed.session.alerts == [{"id": "a"}, {"id": "b"}]


def test_bye_is_a_record_like_any_other(welcomed: Client) -> None:
    welcomed.produce(event(1), Bye(reason="closed"))
    sent = welcomed.send()
    assert (sent[-1].seq, sent[-1].record) == (2, Bye(reason="closed"))
    assert not welcomed.session.is_drained
    welcomed.ack(2)

    assert welcomed.session.is_drained


def test_hello_is_said_again_at_once_over_another_connection(welcomed: Client) -> None:
    welcomed.produce(event(1), event(2), event(3))
    assert seqs(welcomed.send()) == [1, 2, 3]
    welcomed.ack(1)
    welcomed.session.greet_again()
    assert welcomed.greeting() == HELLO
    assert welcomed.send() == []
    welcomed.welcome(acked=2)

    assert seqs(welcomed.send()) == [3]


def test_a_refused_session_says_no_more_hello(client: Client) -> None:
    client.greeting()
    client.receive(Refuse(reason="no"))
    client.session.greet_again()

    assert client.session.phase is SessionPhase.REFUSED
    assert client.greeting() is None
