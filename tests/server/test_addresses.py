"""Addresses: what is one, its host, and whether only this machine reaches it."""

from __future__ import annotations

import pytest

from gradwatch_server.addresses import database_name, endpoint_host, is_loopback, split_address
from gradwatch_server.errors import GradwatchError


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:8420", ("::1", 8420)),
        ("::1:8420", ("::1", 8420)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_an_address_is_host_and_port(address: str, parts: tuple[str, int]) -> None:
    """IPv6 with or without brackets."""
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", ":", "8420", ":8420", "h:", "h:65536", "h:-1", "h:8²", "h:" + "9" * 5000]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form|invalid literal|integer string"):
        split_address(address)


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("tcp://127.0.0.1:5555", "127.0.0.1"),
        ("tcp://*:5555", "*"),
        ("tcp://127.0.0.1:*", "127.0.0.1"),
        ("tcp://[::1]:0", "[::1]"),
        ("tcp://node-7.cluster:65535", "node-7.cluster"),
        ("ipc:///run/gradwatch", None),
    ],
)
def test_the_host_of_an_endpoint(endpoint: str, host: str | None) -> None:
    assert endpoint_host(endpoint) == host


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "tcp://",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://:5555",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:²",
        "tcp://127.0.0.1:" + "9" * 5_000,
        "udp://127.0.0.1:5555",
        "inproc://x",
        "ipc://",
        "127.0.0.1:5555",
        "TCP//x:1",
    ],
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(GradwatchError, match=r"is not like tcp://127\.0\.0\.1:5555 or ipc:///path"):
        endpoint_host(endpoint)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("*", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("2130706433", False),
        ("", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, loopback: bool) -> None:
    """A name that merely looks like one is not."""
    assert is_loopback(host) is loopback


def test_the_name_of_a_database_has_no_password_and_no_options() -> None:
    url = "postgresql://me:s3kret%40@db.example:5433/runs?sslmode=require&password=again"
    assert database_name(url) == "postgresql://db.example:5433/runs"
    assert database_name("postgresql:///runs") == "postgresql:///runs"
