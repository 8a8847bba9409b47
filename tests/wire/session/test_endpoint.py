"""The aggregator's endpoint: where it comes from, and what is taken for one."""

from __future__ import annotations

import re
from typing import Any

import pytest
import zmq

from gradwatch_wire.names import DEFAULT_ENDPOINT
from gradwatch_wire.session.endpoint import find_endpoint, find_endpoints


def test_the_endpoint_is_given_set_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_endpoint(None) == DEFAULT_ENDPOINT == "tcp://127.0.0.1:5555"
    monkeypatch.setenv("GRADWATCH_ENDPOINT", "tcp://head:5556")
    assert find_endpoint(None) == "tcp://head:5556"
    assert find_endpoint("ipc:///tmp/x") == "ipc:///tmp/x"


@pytest.mark.parametrize(
    "endpoint",
    [
        *("tcp://127.0.0.1:5555", "tcp://localhost:1", "tcp://node-7.rack_2.example:65535"),
        *("tcp://[::1]:5555", "tcp://[fe80::1%eth0]:5555", "tcp://[::ffff:10.0.0.1]:5555"),
        *("tcp://eth0;10.0.0.1:5555", "ipc:///run/gradwatch.sock", "ipc://@abstract"),
    ],
)
def test_an_endpoint_that_is_taken_is_one_that_zeromq_connects_to(endpoint: str) -> None:
    """ZeroMQ takes it without a complaint, so the background thread does not fail on it."""
    context = zmq.Context()
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.setsockopt(zmq.IPV6, 1)
        socket.connect(find_endpoint(endpoint))
    context.term()


@pytest.mark.parametrize(
    "endpoint",
    [
        *("127.0.0.1:5555", "http://a:5555", "udp://a:5555", "inproc://a", "tcp://", "tcp://a"),
        *("tcp://a:", "tcp://:5555", "tcp://a:0", "tcp://a:65536", "tcp://a:123456", "tcp://a:b"),
        *("tcp://*:5555", "tcp://a b:5555", "tcp://a:5555/path", "tcp://a:5555\n", "tcp://-:5"),
        *("tcp://é:5555", "tcp://a:٣", "tcp://[::1:5555", "tcp://[x]:5555", "tcp://u@h:5555"),
        *("ipc://", "ipc:///tmp/" + "x" * 120, "ipc:///tmp/a\0b", " tcp://a:5555"),
    ],
)
def test_what_zeromq_cannot_connect_to_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"^endpoint: .* is not like tcp://127.0.0.1:5555 or ipc:"):
        find_endpoint(endpoint)


@pytest.mark.parametrize("endpoint", [5, b"tcp://a:5555", {"tcp://a:5555"}, ["tcp://a:5555", 5]])
def test_an_endpoint_that_is_no_string_is_refused(endpoint: Any) -> None:
    what = r"^endpoint: a string or a list of strings, got (bytes|set|int( in it)?)$"
    with pytest.raises(TypeError, match=what):
        find_endpoints(endpoint)


A, B = "tcp://a:5555", "tcp://b:5555"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        *((A, (A,)), ([A], (A,)), (f"{A},{B}", (A, B)), (f"{B}, {A}", (B, A)), ([B, A], (B, A))),
        *(((A, B), (A, B)), (f"ipc:///x,{A}", ("ipc:///x", A)), ("ipc:///x,y", ("ipc:///x,y",))),
        (f"{A},ipc:///x, y,{B}", (A, "ipc:///x, y", B)),
    ],
)
def test_several_are_a_list_or_have_commas_between_them(
    given: Any, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_endpoints(given) == found
    if isinstance(given, str):
        monkeypatch.setenv("GRADWATCH_ENDPOINT", given)
        assert find_endpoints(None) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (f"{A},b:5555", "'b:5555', 2 of 2, is not like tcp://127.0.0.1:5555 or ipc:///path/"),
        (f"{A},,{B}", "'', 2 of 3, is not like"),
        (f"{A},", "'', 2 of 2, is not like"),
        (f",{A}", "'', 1 of 2, is not like"),
        ([A, f"{A},{B}"], f"'{A},{B}', 2 of 2, is not like"),
        ([A, B, "ipc://@"], "'ipc://@', 3 of 3, is not like"),
        ([A, ""], "'', 2 of 2, is not like"),
        ([B, A, B], f"'{B}' is given twice"),
        ([], "at least one, such as tcp://127.0.0.1:5555, got an empty list"),
    ],
)
def test_of_several_the_one_that_is_wrong_is_named(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match="^endpoint: " + re.escape(message)) as caught:
        find_endpoints(given)
    assert "\n" not in str(caught.value)


def test_what_speaks_with_one_only_names_them_all() -> None:
    """A person chooses one of them."""
    assert find_endpoint(A) == A
    with pytest.raises(ValueError, match=f"^endpoint: one at a time, got 2: {A}, {B}; give one"):
        find_endpoint(f"{A},{B}")
