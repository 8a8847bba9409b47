"""The background thread: it owns the socket, keeps the order, and never holds training up."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq
from torch import nn

import gradwatch
from gradwatch._faults import Faults
from gradwatch._transport.sender import MAX_COLLECTIONS, Sender
from gradwatch_wire import (
    Alert,
    Bye,
    Envelope,
    Event,
    Hello,
    Manifest,
    Record,
    Refuse,
    Stats,
    decode,
    encode,
)
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session, SessionPhase
from tests.support.ports import ReservedPort, has_ipv6
from tests.support.recording import NewAggregator, Sink
from tests.support.waiting import PATIENCE_S, wait_until

# Binds a ROUTER, says where, and reads nothing more once it is stopped.
PEER = """
import sys, zmq
socket = zmq.Context().socket(zmq.ROUTER)
print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
print(len(socket.recv_multipart()), flush=True)
sys.stdin.read()
"""


class Collected:
    """Something whose numbers arrive when the test says so."""

    def __init__(self, step: int, *, arrived: bool = True) -> None:
        self.step = step
        self.time_ns = 0
        self.manifests: list[Any] = []
        self.arrived = arrived
        self.is_lost = False
        self.num_asked = 0
        self.error: Exception | None = None

    def ready(self) -> bool:
        self.num_asked += 1
        return self.arrived

    def records(self) -> list[Record]:
        if self.error is not None:
            raise self.error
        return [Event(name="mark", step=self.step)]


@pytest.fixture
def make_sender() -> Iterator[Callable[[str], tuple[Sender, Faults]]]:
    """A sender to an endpoint, and its faults; closed after the test."""
    made: list[Sender] = []

    def make(endpoint: str) -> tuple[Sender, Faults]:
        faults = Faults()
        hello = Hello(run="test", rank=0, world=1)
        session = Session(os.urandom(16), hello, Outbox(1 << 20))
        made.append(Sender(session, [endpoint], faults, None))
        return made[-1], faults

    yield make
    for sender in made:
        if sender.is_alive():
            sender.close("closed")


@pytest.fixture
def free_endpoint() -> Iterator[str]:
    port = ReservedPort()
    yield port.endpoint
    port.close()


def sender_of(watch: Any) -> Sender:
    sender: Sender = watch._sender
    return sender


def model_with_gradients() -> nn.Module:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    return model


def test_records_keep_the_order_of_the_steps(
    aggregator: Sink, make_sender: Callable[[str], tuple[Sender, Faults]]
) -> None:
    sender, _ = make_sender(aggregator.endpoint)
    late = Collected(1, arrived=False)
    for collected in (Collected(0), late, Collected(2)):
        sender.put(collected)
    sender.start()
    wait_until(lambda: aggregator.of(Event) and late.num_asked > 5, "some rounds of the sender")
    assert [event.step for event in aggregator.of(Event)] == [0]
    late.arrived = True
    sender.close("closed")

    assert [event.step for event in aggregator.of(Event)] == [0, 1, 2]
    assert isinstance(aggregator.stored[-1].record, Bye)


def test_a_pause_ends_with_what_is_handed_over_and_with_the_end(
    aggregator: Sink,
    make_sender: Callable[[str], tuple[Sender, Faults]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradwatch._transport.sender.PAUSE_S", 10 * PATIENCE_S)
    sender, _ = make_sender(aggregator.endpoint)
    sender.start()
    wait_until(lambda: sender._is_pausing, "nothing to be due")
    sender.put(Collected(0))
    wait_until(lambda: aggregator.of(Event), "the record")
    wait_until(lambda: sender._is_pausing, "nothing to be due")
    sender.close("closed")

    assert isinstance(aggregator.stored[-1].record, Bye)


def test_a_record_that_cannot_be_made_costs_only_itself(
    aggregator: Sink, make_sender: Callable[[str], tuple[Sender, Faults]]
) -> None:
    sender, faults = make_sender(aggregator.endpoint)
    broken = Collected(1)
    broken.error = ValueError("oops")
    for collected in (Collected(0), broken, Collected(2)):
        sender.put(collected)
    sender.start()
    sender.close("closed")

    assert [event.step for event in aggregator.of(Event)] == [0, 2]
    assert aggregator.lost == [(2, 2)]
    assert dict(faults.counts) == {"record": 1}
    assert faults.last == "record: ValueError('oops')"


def test_what_waits_for_the_device_is_bounded(
    make_sender: Callable[[str], tuple[Sender, Faults]], free_endpoint: str
) -> None:
    """Beyond that the oldest are dropped, and each one is told."""
    sender, faults = make_sender(free_endpoint)
    for step in range(MAX_COLLECTIONS + 10):
        sender.put(Collected(step))

    assert len(sender.queue) == MAX_COLLECTIONS
    assert sender.queue.num_dropped == faults.counts["dropped"] == 10


@pytest.mark.slow
def test_what_does_not_arrive_from_the_device_does_not_come_after_bye(
    aggregator: Sink, make_sender: Callable[[str], tuple[Sender, Faults]]
) -> None:
    """Closing waits a second for it, then gives it up and says so."""
    sender, faults = make_sender(aggregator.endpoint)

    class TooLate(Collected):
        asked_at_the_end = False

        def ready(self) -> bool:
            self.asked_at_the_end = sender._driver.is_closing
            return bool(sender.session.source.buffer.last == 3)  # BYE has its number

    late = TooLate(1)
    sender.put(Collected(0))
    sender.put(late)
    sender.start()
    sender.close("closed")

    assert late.asked_at_the_end
    assert not sender.is_alive()
    assert [type(e.record) for e in aggregator.stored] == [Event, Bye]
    assert faults.counts["dropped"] == sender.queue.num_dropped == 1
    assert aggregator.lost == [(2, 2)]


def test_each_dropped_collection_is_declared_lost_in_its_place(
    aggregator: Sink, make_sender: Callable[[str], tuple[Sender, Faults]]
) -> None:
    """The numbers of those that were sent have a gap where it would have been."""
    sender, _ = make_sender(aggregator.endpoint)
    for step in range(MAX_COLLECTIONS + 10):
        sender.put(Collected(step))
    sender.start()
    sender.close("closed")

    first, *rest = aggregator.of(Event)
    assert (first.step, len(rest)) == (10, MAX_COLLECTIONS - 1)
    assert aggregator.lost == [(1, 10)]
    assert aggregator.stored[-1].seq == MAX_COLLECTIONS + 11


def test_an_aggregator_that_starts_later_gets_everything(
    new_aggregator: NewAggregator, free_endpoint: str
) -> None:
    """Training does not wait for it, nor does `attach`."""
    with gradwatch.attach(model_with_gradients(), run="test", endpoint=free_endpoint) as watch:
        for _ in range(20):
            watch.collect()
        wait_until(lambda: sender_of(watch).session.source.pending == 21, "all is in the buffer")
        aggregator = new_aggregator(free_endpoint)
        wait_until(lambda: watch.stats()["acked"] == 21, "everything acknowledged")

    assert [stats.step for stats in aggregator.of(Stats)] == list(range(20))


def test_an_aggregator_that_lost_its_log_is_told_the_layers_again(
    new_aggregator: NewAggregator, free_endpoint: str
) -> None:
    first = new_aggregator(free_endpoint)
    with gradwatch.attach(model_with_gradients(), run="test", endpoint=free_endpoint) as watch:
        watch.collect()
        watch.collect()
        wait_until(lambda: watch.stats()["acked"] == 3, "two steps acknowledged")
        first.stop()
        second = new_aggregator(free_endpoint)
        watch.collect()
        wait_until(lambda: len(second.of(Stats)) == 1, "the third step")

    assert [type(e.record) for e in second.stored] == [Manifest, Stats, Bye]
    assert second.layers(second.of(Stats)[0]) == second.layers(first.of(Stats)[0])
    assert second.stored[0].seq == 1
    assert second.lost == [(2, 3)]


@pytest.mark.parametrize("address", ["ipc", *["tcp://[::1]:*"][: has_ipv6()]])
def test_other_transports_are_connected_to(
    new_aggregator: NewAggregator, tmp_path: Path, address: str
) -> None:
    """IPv6, and a Unix socket."""
    endpoint = f"ipc://{tmp_path}/gw" if address == "ipc" else address
    aggregator = new_aggregator(endpoint)
    with gradwatch.attach(
        model_with_gradients(), run="test", endpoint=aggregator.endpoint
    ) as watch:
        watch.collect()

    assert [type(e.record) for e in aggregator.stored] == [Manifest, Stats, Bye]


@pytest.mark.slow
def test_beats_are_sent_between_records(aggregator: Sink) -> None:
    watch = aggregator.attach(model_with_gradients())
    wait_until(lambda: aggregator.beats, "the first beat")
    assert aggregator.beats[0].last_step == -1
    watch.collect(step=41)
    wait_until(lambda: len(aggregator.beats) > 1, "the second beat")

    assert aggregator.beats[1].last_step == 41
    assert aggregator.beats[1].since_s > 0


def test_answers_that_are_none_are_counted() -> None:
    context = zmq.Context()
    with context.socket(zmq.ROUTER) as router:
        router.linger = 0
        endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        watch = gradwatch.attach(model_with_gradients(), run="test", endpoint=endpoint)
        assert isinstance(watch, gradwatch.Watch)
        peer, message = router.recv_multipart()
        for junk in (b"junk", b"\x01\xc1", b"\x02", b"", message):
            router.send_multipart([peer, junk])
        wait_until(lambda: watch.stats()["faults"] == 4, "the junk is counted")
        assert str(watch.stats()["last_error"]).startswith("answer not understood: expected")

        hello = decode(message)
        refusal = Envelope(session=hello.session, record=Refuse(reason="enough"))
        router.send_multipart([peer, encode(refusal)])
        wait_until(lambda: watch.stats()["faults"] == 5, "an answer is read all the same")
        watch.close()
    context.term()


def test_a_record_that_is_too_large_is_told(
    aggregator: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that is not reported at all must not be so in silence."""
    aggregator.welcome["max_record_bytes"] = 4_096
    model = nn.Module()
    for number in range(10):
        model.register_parameter(f"{number:0>500}", nn.Parameter(torch.ones(())))
    for parameter in model.parameters():
        parameter.grad = torch.ones(())
    watch = aggregator.attach(model)
    wait_until(lambda: sender_of(watch).session.phase is SessionPhase.OPEN, "WELCOME")
    watch.collect()
    wait_until(lambda: "a Manifest was left out" in caplog.text, "the line in the log")

    assert watch.stats()["last_error"] == "oversize: a Manifest was left out"


@pytest.mark.slow
def test_close_gives_up_when_nobody_is_there(free_endpoint: str) -> None:
    watch = gradwatch.attach(model_with_gradients(), run="test", endpoint=free_endpoint)
    for _ in range(100):
        watch.collect()

    watch.close()

    assert not sender_of(watch).is_alive()
    assert watch.stats()["pending"] == 102


@pytest.mark.slow
def test_close_gives_up_when_the_peer_never_answers() -> None:
    context = zmq.Context()
    with context.socket(zmq.ROUTER) as router:
        router.linger = 0
        endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        watch = gradwatch.attach(model_with_gradients(), run="test", endpoint=endpoint)
        watch.collect()
        watch.close()

        assert not sender_of(watch).is_alive()
        assert router.poll(0)
        assert watch.stats()["pending"] == 3
    context.term()


@pytest.mark.slow
def test_close_gives_up_when_the_peer_is_stopped() -> None:
    """SIGSTOP: its system takes what is sent, the process does not."""
    with subprocess.Popen(
        [sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdout is not None
        endpoint = f"tcp://127.0.0.1:{peer.stdout.readline().strip()}"
        watch = gradwatch.attach(model_with_gradients(), run="test", endpoint=endpoint)
        assert peer.stdout.readline() == "2\n"
        peer.send_signal(19)
        for _ in range(100):
            watch.collect()
        watch.close()
        assert peer.poll() is None
        peer.kill()

    assert not sender_of(watch).is_alive()
    assert watch.stats()["pending"] == 102


@pytest.mark.slow
def test_close_gives_up_when_the_callback_hangs(aggregator: Sink) -> None:
    """The thread that receives alerts is the one that closes."""
    release, called = threading.Event(), threading.Event()

    def hang(alert: object) -> None:
        called.set()
        release.wait()

    watch = aggregator.attach(model_with_gradients(), on_alert=hang)
    wait_until(lambda: aggregator.hellos, "HELLO")
    aggregator.send(Alert(alert={"id": "a"}))
    assert called.wait(PATIENCE_S)
    watch.close()

    assert sender_of(watch).is_alive()
    release.set()
    sender_of(watch).join(PATIENCE_S)


def test_the_log_says_where_it_sends(aggregator: Sink, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gradwatch"):
        aggregator.attach(model_with_gradients(), run="gpt2-small")

    (record,) = caplog.records
    assert record.getMessage() == (
        f"gradwatch: run gpt2-small, rank 0 of 1, 2 layers, to {aggregator.endpoint}"
    )
