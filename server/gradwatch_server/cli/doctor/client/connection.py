"""Checks of the way to the ingest port, each of which needs the one before it."""

from __future__ import annotations

import errno
import socket
import statistics
import time
from pathlib import Path
from typing import Final

from gradwatch_server.addresses import endpoint_host, is_loopback
from gradwatch_server.cli.doctor.client.exchange import Handshake
from gradwatch_server.cli.doctor.client.subject import ClientSide
from gradwatch_server.cli.doctor.finding import Finding, error, ok, skipped, warning
from gradwatch_server.errors import GradwatchError
from gradwatch_server.keys import check_pair
from gradwatch_wire.names import DEFAULT_ENDPOINT, INGEST_PORT
from gradwatch_wire.session.peer import Speaks

CONNECT_S: Final = 5.0
SLOW_S: Final = 0.25
"""A round trip from which on it is worth asking what lies between."""

_WHERE: Final = (
    "set GRADWATCH_ENDPOINT, or attach(endpoint=...), to where gradwatch serve takes records"
)
_OTHER_MACHINE: Final = (
    "start an aggregator there (gradwatch serve); for other machines it has to listen beyond "
    "loopback: --ingest 'tcp://*:5555' --keys-dir DIR"
)


def look_at_endpoint(subject: ClientSide) -> Finding:
    """Ask whether it is one, as `attach` does."""
    try:
        return ok(subject.endpoint)
    except (TypeError, ValueError) as fault:
        return error(str(fault), f"give one like {DEFAULT_ENDPOINT}")


def look_at_name(subject: ClientSide) -> Finding:
    """Ask for the addresses of the host."""
    host = subject.host
    if host is None:
        return skipped("a Unix socket has no host")
    try:
        found = socket.getaddrinfo(host, subject.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as fault:
        says = f"{host} has no address: {getattr(fault, 'strerror', None) or fault}"
        return error(says, f"correct the name, or the resolver of this machine; {_WHERE}")
    addresses = sorted({str(each[4][0]) for each in found})
    is_v6_only = all(each[0] == socket.AF_INET6 for each in found)
    if is_v6_only and "[" not in subject.endpoint:
        says = (
            f"{host} has IPv6 addresses only ({', '.join(addresses)}); names are not asked for them"
        )
        return error(says, f"give the address itself: tcp://[{addresses[0]}]:{subject.port}")
    return ok(f"{host} is {', '.join(addresses)}")


def look_at_connection(subject: ClientSide) -> Finding:
    """Connect, and say how long that took."""
    if subject.host is None:
        path = Path(subject.endpoint.partition("://")[2])
        if subject.peer.speaks is Speaks.NOTHING:
            why = "nobody listens there" if path.exists() else "there is no such socket"
            return error(f"{subject.endpoint}: {why}", _OTHER_MACHINE)
        return ok(f"{subject.endpoint} takes a connection")
    began_s = time.monotonic()
    try:
        socket.create_connection((subject.host, subject.port), CONNECT_S).close()
    except TimeoutError:
        says = f"{subject.endpoint} does not answer within {CONNECT_S:g} s"
        return error(says, f"look for a firewall in between, and whether the host is up; {_WHERE}")
    except OSError as fault:
        return error(f"{subject.endpoint}: {fault.strerror or fault}", _refused(fault))
    return ok(f"connected within {_ms(time.monotonic() - began_s)}")


def look_at_peer(subject: ClientSide) -> Finding:
    """Ask what speaks there."""
    peer = subject.peer
    if peer.speaks in {Speaks.ROUTER, Speaks.CURVE}:
        return ok(f"there is {peer.what}")
    if (answer := subject.aggregator_at_endpoint) is not None:
        says = f"{subject.endpoint} is where an aggregator answers HTTP; records go elsewhere"
        return error(says, ingest_advice(subject, answer.fields.get("ingest")))
    if peer.speaks is Speaks.SILENCE:
        return error(f"there is {peer.what}", f"it hangs, or is no aggregator; {_WHERE}")
    return error(f"there is {peer.what}, that is no aggregator", _WHERE)


def look_at_key(subject: ClientSide) -> Finding:
    """Read the key file as `attach` does."""
    if not subject.key_file:
        return skipped("GRADWATCH_KEYS is not set: this process has no key")
    try:
        key = subject.key
        if key is not None:
            check_pair(key.public, key.secret, Path(subject.key_file))
    except (GradwatchError, ValueError) as fault:
        what, _, advice = str(fault).partition("; ")
        return error(what, advice or "ask for the file anew: gradwatch keys --client NAME makes it")
    return ok(f"{subject.key_file} can be read by its owner alone")


def look_at_handshake(subject: ClientSide) -> Finding:
    """Shake hands as a client, with its key."""
    needs_key = subject.peer.speaks is Speaks.CURVE
    if needs_key and subject.key is None:
        says = "the aggregator asks for a key, and this process has none"
        return error(says, "set GRADWATCH_KEYS to a file that 'gradwatch keys --client NAME' made")
    if not needs_key and subject.key is not None and subject.peer.speaks is Speaks.ROUTER:
        says = "this process has a key, and the aggregator asks for none: they do not understand"
        return error(says, "unset GRADWATCH_KEYS, or give the aggregator --keys-dir")
    how = subject.exchange.handshake
    if how is Handshake.DONE:
        return ok("ZeroMQ's handshake was done" + (", encrypted" if needs_key else ""))
    if how is Handshake.SILENT:
        return error(
            "ZeroMQ's handshake was not answered", f"it hangs, or is no aggregator; {_WHERE}"
        )
    if needs_key:
        says = f"the key in {subject.key_file} is not let in"
        advice = (
            "it is unknown there, or of another aggregator: copy the file anew; what was added "
            "with 'gradwatch keys --client' counts from the aggregator's next start on"
        )
        return error(says, advice)
    return error(f"ZeroMQ's handshake failed ({how.value})", _WHERE)


def look_at_answer(subject: ClientSide) -> Finding:
    """Ask the aggregator itself, which leaves nothing there."""
    found = subject.exchange
    if found.babble:
        return error(
            f"what answers is no aggregator, or of another version: {found.babble}", _WHERE
        )
    if not found.round_trips_s:
        says = "a ZeroMQ socket is there, and does not answer"
        return error(says, f"the aggregator hangs, or it is none: see /readyz; {_WHERE}")
    trip_s = statistics.median(found.round_trips_s)
    says = f"the aggregator answers; a round trip takes {_ms(trip_s)}"
    if trip_s > SLOW_S:
        advice = "nothing is lost by it; ask what lies in between, or run an aggregator closer by"
        return warning(says, advice)
    return ok(says)


def ingest_advice(subject: ClientSide, told: object) -> str:
    """Return where records go instead of the HTTP port, as far as the aggregator says."""
    if told is None:  # it listens on all addresses, at a port that it does not tell
        host = f"[{subject.host}]" if ":" in str(subject.host) else subject.host
        usual = f"tcp://{host}:{INGEST_PORT}"
        return f"give the address that gradwatch serve prints as ingest: {usual}, if not set other"
    own = endpoint_host(str(told))
    if own is not None and is_loopback(own) and not is_loopback(str(subject.host)):
        return f"it takes records at {told}, on its own machine only: {_OTHER_MACHINE}"
    return f"give the address that gradwatch serve prints as ingest: {told}"


def _refused(fault: OSError) -> str:
    is_refused = fault.errno == errno.ECONNREFUSED
    return f"{_OTHER_MACHINE}; {_WHERE}" if is_refused else _WHERE


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
