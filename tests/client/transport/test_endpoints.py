"""Several endpoints: where one path ends, the same session goes on over another."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from gradwatch_wire import Bye, Stats
from tests.support.ports import ReservedPort
from tests.support.recording import NewAggregator, Sink
from tests.support.relay import Relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def relay() -> Iterator[Callable[[str], Relay]]:
    """`relay(endpoint)` opens a way there, which is cut after the test."""
    made: list[Relay] = []

    def start(endpoint: str) -> Relay:
        made.append(Relay(endpoint))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def nowhere() -> Iterator[list[str]]:
    ports = [ReservedPort(), ReservedPort()]
    yield [port.endpoint for port in ports]
    for port in ports:
        port.close()


def model_with_gradients() -> nn.Module:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    return model


def test_a_path_that_is_cut_loses_doubles_and_reorders_nothing(
    aggregator: Sink, relay: Callable[[str], Relay]
) -> None:
    first, second = relay(aggregator.endpoint), relay(aggregator.endpoint)
    watch = aggregator.attach(
        model_with_gradients(), endpoint=f"{first.endpoint},{second.endpoint}"
    )
    assert watch.endpoint == watch.stats()["endpoint"] == first.endpoint
    for step in range(800):
        watch.collect(step=step)
        if step == 300:
            wait_until(lambda: int(watch.stats()["acked"]) > 100, "the stream flows")
            first.close()
    wait_until(lambda: watch.stats()["acked"] == 801, "everything acknowledged")
    assert watch.endpoint == watch.stats()["endpoint"] == second.endpoint
    assert f"endpoint={second.endpoint!r}" in repr(watch)
    watch.close()

    assert [stats.step for stats in aggregator.of(Stats)] == list(range(800))
    assert [envelope.seq for envelope in aggregator.stored] == list(range(1, 803))
    assert aggregator.lost == []
    assert (len(aggregator.hellos), aggregator.num_hellos) == (1, 2)
    assert watch.stats()["moves"] == 1
    assert watch.stats()["faults"] == 0


def test_it_stays_where_it_is_when_the_first_one_is_back(
    new_aggregator: NewAggregator, aggregator: Sink, nowhere: list[str]
) -> None:
    watch = aggregator.attach(model_with_gradients(), endpoint=nowhere)
    watch.collect()
    second = new_aggregator(nowhere[1])
    wait_until(lambda: watch.stats()["acked"] == 2, "the second one has it")
    first = new_aggregator(nowhere[0])
    moves = watch.stats()["moves"]
    watch.collect()
    watch.close()

    assert [type(envelope.record) for envelope in second.stored][-2:] == [Stats, Bye]
    assert (first.hellos, watch.endpoint, watch.stats()["moves"]) == ({}, nowhere[1], moves)


def test_ranks_spread_over_the_endpoints(
    monkeypatch: pytest.MonkeyPatch, new_aggregator: NewAggregator, aggregator: Sink
) -> None:
    """Rank r begins at number r modulo their number, and goes on in their order."""
    aggregators = [new_aggregator() for _ in range(3)]
    ways = [each.endpoint for each in aggregators]
    monkeypatch.setenv("GRADWATCH_ENDPOINT", ",".join(ways))
    monkeypatch.setenv("WORLD_SIZE", "5")
    for rank in range(5):
        monkeypatch.setenv("RANK", str(rank))
        watch = aggregator.attach(nn.Linear(2, 2), endpoint=None)
        first = rank % 3
        assert [watch.endpoint, *watch._sender.route.others] == ways[first:] + ways[:first]
    wait_until(lambda: sum(len(each.hellos) for each in aggregators) == 5, "all say HELLO")

    said = [[hello.rank for hello in each.hellos.values()] for each in aggregators]
    assert [sorted(ranks) for ranks in said] == [[0, 3], [1, 4], [2]]


def test_a_refusal_is_not_carried_elsewhere(
    new_aggregator: NewAggregator, aggregator: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    strict, other = new_aggregator(), new_aggregator()
    strict.refusal = "too many"
    watch = aggregator.attach(model_with_gradients(), endpoint=[strict.endpoint, other.endpoint])
    wait_until(lambda: "too many" in caplog.text, "the line in the log")
    strict.stop()
    connection: Any = watch._sender._connection
    wait_until(lambda: not connection._is_connected, "nobody listens there any more")
    watch.collect()
    watch.close()

    assert (other.hellos, watch.endpoint) == ({}, strict.endpoint)
    assert f"not delivered to {strict.endpoint}: the aggregator refused: 'too many'" in caplog.text


def test_where_nobody_answers_all_are_named(
    aggregator: Sink, nowhere: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    watch = aggregator.attach(model_with_gradients(), endpoint=nowhere)
    watch.collect()
    watch.close()

    first, second = nowhere
    what = f"3 pending records were not delivered to {first}, {second}: no aggregator answered;"
    assert caplog.records[-1].getMessage().startswith(f"gradwatch: {what}")
    assert int(watch.stats()["moves"]) > 0


def test_what_comes_at_the_end_goes_to_the_next_one(
    aggregator: Sink, relay: Callable[[str], Relay]
) -> None:
    """Also in the two seconds of `close`."""
    first = relay(aggregator.endpoint)
    watch = aggregator.attach(
        model_with_gradients(), endpoint=[first.endpoint, aggregator.endpoint]
    )
    watch.collect()
    wait_until(lambda: watch.stats()["acked"] == 2, "the first step acknowledged")
    first.close()
    watch.collect()
    watch.close()

    assert [envelope.seq for envelope in aggregator.stored] == [1, 2, 3, 4]
    assert watch.endpoint == aggregator.endpoint


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open none."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.open(os.devnull, os.O_RDONLY)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_descriptors_for_the_next_one_it_stays_and_tries_again(
    new_aggregator: NewAggregator, aggregator: Sink
) -> None:
    """ZeroMQ would end the process."""
    first, second = new_aggregator(), new_aggregator()
    watch = aggregator.attach(model_with_gradients(), endpoint=[first.endpoint, second.endpoint])
    wait_until(lambda: first.hellos, "HELLO")
    with no_descriptors():
        first.stop()
        wait_until(lambda: int(watch.stats()["faults"]) > 1, "it cannot move")
        assert watch.endpoint == first.endpoint
        assert str(watch.stats()["last_error"]).startswith("endpoint: file descriptors: 16 are")
    wait_until(lambda: second.hellos, "HELLO at the next one")

    assert watch.endpoint == second.endpoint
