"""Checks of the addresses that the aggregator listens at, and of the one that does already."""

from __future__ import annotations

import errno
import http.client
import os
import socket
from pathlib import Path

import zmq

from gradwatch_server.addresses import endpoint_host, is_wildcard, split_address
from gradwatch_server.cli.doctor.finding import Finding, error, ok, skipped, warning
from gradwatch_server.cli.doctor.server.subject import ServerSide
from gradwatch_wire.session.peer import Speaks, look_at


def look_at_http_address(subject: ServerSide) -> Finding:
    """Ask whether the address of the HTTP API can be had."""
    host, port = split_address(subject.settings.http)
    fault = _bind_fault(host, port)
    if fault is None:
        return ok(f"{subject.settings.http} can be had")
    if fault.errno != errno.EADDRINUSE:
        return _unavailable(subject.settings.http, fault, "--http")
    if subject.running is None:
        says = f"{subject.settings.http} is taken by something that is no aggregator"
        return error(
            says, f"give a free one with --http, or end it: see 'ss -ltnp sport = :{port}'"
        )
    return _taken(
        subject,
        subject.settings.http,
        "--http",
        is_own=subject.is_own,
        version=subject.running.fields["version"],
    )


def look_at_ingest_address(subject: ServerSide) -> Finding:
    """Ask whether the endpoint that records go to can be had."""
    endpoint = subject.settings.ingest
    host = endpoint_host(endpoint)
    if host is None:
        return _look_at_path(subject, endpoint)
    port = endpoint.rpartition(":")[2]
    fault = _ingest_fault(endpoint.removesuffix(":0") + ":*" if port == "0" else endpoint)
    if fault is None:
        return ok(f"{endpoint} can be had")
    if fault.errno != errno.EADDRINUSE:
        return _unavailable(endpoint, fault, "--ingest")
    return _who_has(subject, endpoint, f"tcp://{_reachable(host)}:{port}")


def look_at_aggregator(subject: ServerSide) -> Finding:
    """Ask the aggregator that runs whether it takes records in."""
    if subject.running is None:
        return skipped("none answers at the HTTP address")
    if subject.is_own is False and subject.settings.cluster is None:
        return skipped("the one that answers at the HTTP address is not that of this data")
    answer = subject.ask("/readyz")
    if answer.status != http.client.OK:
        why = answer.fields.get("detail", f"HTTP {answer.status}")
        return error(f"it takes nothing in: {why}", "see its log, and docs/reliability.md")
    if "lost" in answer.fields:
        return warning(f"it runs, but {answer.fields['lost']}", "see docs/reliability.md")
    return ok(f"version {subject.running.fields['version']} runs, and takes records in")


def _look_at_path(subject: ServerSide, endpoint: str) -> Finding:
    """Look at the place of a Unix socket; an abstract one has none."""
    address = endpoint.removeprefix("ipc://")
    if look_at(endpoint).speaks is not Speaks.NOTHING:
        return _who_has(subject, endpoint, endpoint)
    parent = Path(address).absolute().parent
    if not address.startswith("@") and not os.access(parent, os.W_OK | os.X_OK):
        return error(f"{endpoint}: nothing can be made in {parent}", "give another --ingest")
    return ok(f"{endpoint} can be had")


def _who_has(subject: ServerSide, endpoint: str, reached: str) -> Finding:
    """Say who has an ingest endpoint that is taken."""
    peer = look_at(reached)
    if peer.speaks not in {Speaks.ROUTER, Speaks.CURVE}:
        return error(f"{endpoint} is taken: there is {peer.what}", "give a free one with --ingest")
    return _taken(subject, endpoint, "--ingest", is_own=_takes_records_at(subject, endpoint))


def _taken(
    subject: ServerSide, address: str, option: str, *, is_own: bool | None, version: str = ""
) -> Finding:
    """Say of an address that an aggregator has whether it is that of this data directory."""
    store, data = subject.store, subject.settings.data
    which = f"an aggregator{f' ({version})' if version else ''}"
    if subject.settings.cluster is not None:
        return ok(f"{address} is taken by {which}; which node that is is not known")
    if store.holder is None:
        says = f"{address} is taken by {which}, but no process has the data directory {data}"
        return error(says, f"stop that one, or give a free address with {option}")
    if is_own is None:
        says = f"{address} is taken by {which}, and a process has this data directory"
        return ok(f"{says}; whether it is the same one is not known")
    if is_own:
        return ok(f"{address} is taken by {which}, the one that has this data directory")
    says = f"{address} is taken by {which} of other data; the one that has {data} listens elsewhere"
    return error(says, f"give the --data of that one, or the address of this one with {option}")


def _takes_records_at(subject: ServerSide, endpoint: str) -> bool | None:
    """Tell whether the aggregator of the data directory has an endpoint; None if nobody knows.

    What is known is what the one says that answers at the HTTP address.
    """
    if subject.running is None or subject.is_own is None:
        return None
    told = subject.running.fields.get("ingest")
    if told is None:  # it listens on all addresses, at a port that it does not tell
        host = endpoint_host(endpoint)
        is_there = host is not None and is_wildcard(host)
        return True if is_there and subject.is_own else None
    is_there = str(told).rpartition(":")[2] == endpoint.rpartition(":")[2]
    if subject.is_own:
        return is_there
    return False if is_there else None


def _unavailable(address: str, fault: OSError, option: str) -> Finding:
    says = f"{address} cannot be had: {fault.strerror or fault}"
    if fault.errno == errno.EACCES:
        return error(says, f"give a port from 1024 on with {option}")
    return error(says, f"give an address of this machine with {option}")


def _bind_fault(host: str, port: int) -> OSError | None:
    """Listen for a moment, as the aggregator does; return why that cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as fault:
        return fault
    except UnicodeError as fault:
        return OSError(errno.EINVAL, str(fault))
    return None


def _ingest_fault(endpoint: str) -> OSError | None:
    """Likewise by ZeroMQ, which takes names of interfaces, too."""
    context = zmq.Context()
    try:
        with context.socket(zmq.ROUTER) as socket_:
            socket_.setsockopt(zmq.LINGER, 0)
            socket_.setsockopt(zmq.IPV6, int("[" in endpoint))
            socket_.bind(endpoint)
    except zmq.ZMQError as fault:
        return OSError(fault.errno, fault.strerror)
    finally:
        context.term()
    return None


def _reachable(host: str) -> str:
    return "127.0.0.1" if is_wildcard(host) else host
