"""The checks of the way from a training to its aggregator.

They need no more than the client does: pyzmq, msgpack and the standard library.
"""

from __future__ import annotations

import os
import platform
import socket
from datetime import UTC, datetime
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from gradwatch_server.cli.credentials import credentials
from gradwatch_server.cli.doctor.packages import complaints, version_of
from gradwatch_server.cli.doctor.probes import HttpResponse, ask, exchange
from gradwatch_server.cli.doctor.report import Check, Finding, error, ok, skipped, warning
from gradwatch_server.cli.replay import find_key
from gradwatch_server.errors import GradwatchError
from gradwatch_server.keys import check_pair
from gradwatch_wire import ProtocolError, __version__
from gradwatch_wire.keyfile import ClientKey
from gradwatch_wire.names import DEFAULT_ENDPOINT, HTTP_PORT, INGEST_PORT
from gradwatch_wire.session.endpoint import find_endpoint
from gradwatch_wire.session.peer import Peer, Speaks, look_at

MOST_SKEW_S: Final = 2.0
"""Difference of two clocks from which on times of both are hard to compare."""

_WHERE: Final = (
    "set GRADWATCH_ENDPOINT, or attach(endpoint=...), to where gradwatch serve takes records"
)
_START: Final = (
    "start an aggregator there (gradwatch serve), and look for a firewall in between; for other "
    f"machines it has to listen beyond loopback: --ingest 'tcp://*:5555' --keys-dir DIR; {_WHERE}"
)
_URL: Final = "give its address with --url or GRADWATCH_URL"


class ClientSide:
    """The endpoint, its key, and what answers there; each is found when first asked for.

    Args:
        endpoint: Where records go, None for `GRADWATCH_ENDPOINT` or the default.
        url: The HTTP address, None for `GRADWATCH_URL`, or the endpoint's host and the usual port.
        keys: The key file, None for `GRADWATCH_KEYS`.
    """

    def __init__(self, endpoint: str | None, url: str | None, keys: Path | None) -> None:
        self._endpoint = endpoint
        self._url = url or os.environ.get("GRADWATCH_URL") or None
        self._keys = keys
        self.is_url_given = self._url is not None
        self.key_file = str(keys or os.environ.get("GRADWATCH_KEYS", ""))

    @cached_property
    def endpoint(self) -> str:
        """The endpoint, or the error of `attach`."""
        return find_endpoint(self._endpoint)

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of the endpoint, None of a Unix socket."""
        scheme, _, address = self.endpoint.partition("://")
        if scheme.lower() == "ipc":
            return None
        # Without the address to connect from, which ZeroMQ takes before a semicolon.
        host, _, port = address.rpartition(";")[2].rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def url(self) -> str:
        return self._url or self.url_at(HTTP_PORT)

    def url_at(self, port: int) -> str:
        """Return the HTTP address of the endpoint's host at a port."""
        host = "127.0.0.1" if self.address is None else self.address[0]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @cached_property
    def key(self) -> ClientKey | None:
        """The key, None without one."""
        return find_key(self._keys)

    @cached_property
    def peer(self) -> Peer:
        return look_at(self.endpoint)

    def ask(self, path: str) -> HttpResponse:
        """Ask over HTTP, with the token of `GRADWATCH_TOKEN`."""
        settings: dict[str, Any] = credentials()
        return ask(self.url, path, settings.get("headers"), settings.get("verify"))


def _torch(_side: ClientSide) -> Finding:
    names = ("pyzmq", "msgpack", "torch")
    versions = ", ".join(f"{name} {version_of(name) or 'missing'}" for name in names)
    text = f"gradwatch {__version__}, Python {platform.python_version()}, {versions}"
    if complaint := "; ".join(complaints("client")):
        text += f": {complaint}"
    elif version_of("torch") is not None:
        return ok(text)
    advice = "run: pip install --upgrade 'gradwatch[client]'"
    return warning(f"{text}; nothing can be watched here", advice)


def _endpoint(side: ClientSide) -> Finding:
    try:
        address = side.address
    except (TypeError, ValueError) as fault:
        return error(str(fault), f"give one like {DEFAULT_ENDPOINT}")
    if address is None:
        return ok(side.endpoint)
    try:
        # As the client's socket, which asks for IPv6 of an address in brackets alone.
        family = socket.AF_INET6 if "[" in side.endpoint else socket.AF_INET
        addresses = socket.getaddrinfo(*address, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as fault:
        text = f"{address[0]} has no address: {getattr(fault, 'strerror', None) or fault}"
        return error(text, f"correct the name, or the resolver of this machine; {_WHERE}")
    return ok(f"{side.endpoint}, {addresses[0][4][0]}")


def _peer(side: ClientSide) -> Finding:
    peer = side.peer
    if peer.speaks in {Speaks.ROUTER, Speaks.CURVE}:
        return ok(f"there is {peer.what}")
    if peer.speaks is Speaks.NOTHING:
        return error(f"nothing at {side.endpoint} takes a connection", _START)
    if peer.speaks is Speaks.HTTP and side.address is not None:
        answer = ask(side.url_at(side.address[1]), "/healthz")
        if answer.is_aggregator:
            text = f"{side.endpoint} is where an aggregator answers HTTP; records go elsewhere"
            told = answer.fields.get("ingest") or f"port {INGEST_PORT} of this host by default"
            return error(text, f"give the address that gradwatch serve prints as ingest: {told}")
    if peer.speaks is Speaks.SILENCE:
        return error(f"there is {peer.what}", f"it hangs, or is no aggregator; {_WHERE}")
    return error(f"there is {peer.what}, that is no aggregator", _WHERE)


def _key(side: ClientSide) -> Finding:
    try:
        if side.key is not None:
            check_pair(side.key.public, side.key.secret, Path(side.key_file))
    except (GradwatchError, ValueError) as fault:
        what, _, advice = str(fault).partition("; ")
        return error(what, advice or "ask for the file anew: gradwatch keys --client NAME makes it")
    is_asked_for = side.peer.speaks is Speaks.CURVE
    if is_asked_for and side.key is None:
        text = "the aggregator asks for a key, and this process has none"
        return error(text, "set GRADWATCH_KEYS to a file that 'gradwatch keys --client NAME' made")
    if side.key is None:
        return skipped("no key is set, and none is asked for")
    if not is_asked_for:
        text = "this process has a key, and the aggregator asks for none: they do not understand"
        return error(text, "unset GRADWATCH_KEYS, or give the aggregator --keys-dir")
    return ok(f"{side.key_file} can be read by its owner alone")


def _protocol(side: ClientSide) -> Finding:
    try:
        trip_s = exchange(side.endpoint, side.key)
    except GradwatchError as fault:
        if side.key is None:
            return error(str(fault), f"it hangs, or is no aggregator; {_WHERE}")
        advice = (
            "it is unknown there, or of another aggregator: copy the file anew; what was added "
            "with 'gradwatch keys --client' counts from the aggregator's next start on"
        )
        return error(f"the key in {side.key_file} is not let in", advice)
    except ProtocolError as fault:
        text = f"what answers is no aggregator, or of another version: {fault}"
        return error(text, f"install the same version on both sides; {_WHERE}")
    if trip_s is None:
        text = "a ZeroMQ socket is there, and does not answer"
        return error(text, f"the aggregator hangs, or it is none: see /readyz; {_WHERE}")
    how = "" if side.key is None else ", encrypted"
    return ok(f"the aggregator answers{how}; a round trip takes {1e3 * trip_s:.3g} ms")


def _http(side: ClientSide) -> Finding:
    try:
        text = "" if side.ask("/healthz").is_aggregator else f"{side.url} is no aggregator"
    except GradwatchError as fault:
        text = str(fault)
    if text and side.is_url_given:
        return error(text, _URL)
    if text:
        return warning(f"{text}; training goes on without it", _URL, blocks_others=True)
    ready, runs = side.ask("/readyz"), side.ask("/runs?limit=1")
    if ready.status != HTTPStatus.OK:
        advice = "see the aggregator's log and docs/reliability.md"
        return error(f"it takes nothing in: {ready.why}", advice, blocks_others=False)
    if runs.status != HTTPStatus.OK:
        advice = "set GRADWATCH_TOKEN to a token of the aggregator's tokens.toml"
        return warning(runs.why, advice)
    return ok(f"an aggregator answers at {side.url}, takes records in and may be read from here")


def _version(side: ClientSide) -> Finding:
    other = str(side.ask("/healthz").fields["version"])
    if other.split(".")[:2] == __version__.split(".")[:2]:
        return ok(f"{other} there, {__version__} here")
    text = f"the aggregator is {other}, this is {__version__}: what one of them lacks is left out"
    return warning(text, "upgrade the older one; the aggregator first")


def _clock(side: ClientSide) -> Finding:
    answer = side.ask("/healthz")
    now = datetime.now(UTC)
    try:
        there = datetime.fromisoformat(answer.fields["now"])
        ahead_s = (there - now).total_seconds() + answer.took_s / 2
    except (KeyError, TypeError, ValueError):
        return skipped("this aggregator does not tell its time")
    text = f"the aggregator's clock is {abs(ahead_s):.1f} s {'ahead' if ahead_s > 0 else 'behind'}"
    if abs(ahead_s) > MOST_SKEW_S:
        return warning(text, "set both by NTP; until then times of both do not compare")
    return ok(text)


CLIENT_CHECKS: Final[tuple[Check[ClientSide], ...]] = (
    Check("torch", "versions of gradwatch and of what the client needs, against what fits", _torch),
    Check("endpoint", "`--endpoint` as `attach` reads it, and its host", _endpoint),
    Check("peer", "whether anything listens at the port, and what it is", _peer, ("endpoint",)),
    Check("key", "the key file, and whether both sides ask for keys", _key, ("peer",)),
    Check("protocol", "the handshake, and the answer to a sign of life", _protocol, ("key",)),
    Check("http", "`--url`: who answers, `/readyz`, the token", _http, ("endpoint",)),
    Check("version", "the aggregator's version beside this one", _version, ("http",)),
    Check("clock", "the aggregator's clock beside this one", _clock, ("http",)),
)
