"""The checks of the machine that an aggregator runs on, or is to run on."""

from __future__ import annotations

import errno
import http.client
import os
import platform
import socket
import ssl
import stat
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import zmq

from gradwatch_server.addresses import endpoint_host, is_wildcard, split_address
from gradwatch_server.api.tls import check_tls
from gradwatch_server.cli.doctor.packages import complaints, version_of
from gradwatch_server.cli.doctor.probes import HttpResponse, ask
from gradwatch_server.cli.doctor.report import Check, Finding, error, ok, skipped, warning
from gradwatch_server.clock import FIRST_NS
from gradwatch_server.errors import GradwatchError
from gradwatch_server.keys import read_keys
from gradwatch_server.notify.notifications import make_notifiers
from gradwatch_server.settings import Settings, exposure_warnings, load_settings
from gradwatch_server.storage.inspection import StoreInspection
from gradwatch_server.stores import find_nodes, inspect_store
from gradwatch_wire import __version__
from gradwatch_wire.keyfile import read_private
from gradwatch_wire.session.peer import Speaks, look_at

if TYPE_CHECKING:
    from gradwatch_server.stores import Node

LEAST_FREE_BYTES: Final = 256 << 20
"""Below this a disk counts as full: what is written between two looks at the sizes has to fit."""

MOST_AHEAD_S: Final = 60.0
"""Seconds that the data may be younger than now."""

_ANOTHER: Final = "or choose another directory with --data"


class ServerSide:
    """The settings, the data, and who answers; each is found when first asked for.

    Args:
        config: The settings file, None for the usual one.
        given: Settings of the command line, None where not given.
    """

    def __init__(self, config: Path | None = None, **given: Any) -> None:
        self._config = config
        self._given = given

    @cached_property
    def settings(self) -> Settings:
        """The settings of `gradwatch serve` with the same options."""
        return load_settings(self._config, **self._given)

    @cached_property
    def store(self) -> StoreInspection:
        return inspect_store(self.settings.data)

    @cached_property
    def nodes(self) -> list[Node]:
        """The nodes of the database, none without one."""
        store = self.settings.store
        return [] if store is None else find_nodes(store.get_secret_value())

    @cached_property
    def running(self) -> HttpResponse | None:
        """The answer of an aggregator at our HTTP address; None without one."""
        if split_address(self.settings.http)[1] == 0:
            return None
        try:
            answer = self.ask("/healthz")
        except GradwatchError:
            return None
        return answer if answer.is_aggregator else None

    @property
    def is_own(self) -> bool:
        """True if the aggregator that answers has this data."""
        if self.running is None:
            return False
        boot = self.running.fields["boot"]
        if self.settings.store is not None:
            return any(node.id == boot for node in self.nodes)
        return self.store.boot is not None and self.store.boot == boot

    def ask(self, path: str) -> HttpResponse:
        """Ask at our HTTP address, whosever it is."""
        host, port = split_address(self.settings.http)
        host = _near(host)
        is_plain = self.settings.http_tls_cert is None
        url = f"{'http' if is_plain else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
        # On this machine, and nothing secret is sent: whose certificate it is does not matter.
        trusted = None if is_plain else ssl._create_unverified_context()  # noqa: S323
        return ask(url, path, trusted=trusted)


def _packages(_side: ServerSide) -> Finding:
    text = (
        f"gradwatch {__version__}, Python {platform.python_version()}, pyzmq {version_of('pyzmq')}"
    )
    if complaint := "; ".join(complaints("server")):
        return error(f"{text}: {complaint}", "run: pip install --upgrade 'gradwatch[server]'")
    return ok(text)


def _settings(side: ServerSide) -> Finding:
    advice = "correct it; docs/commands.md lists the settings"
    try:
        settings = side.settings
    except GradwatchError as fault:
        return error(str(fault), advice)
    try:
        check_tls(settings.http_tls_cert, settings.http_tls_key)
        make_notifiers(settings.notify)
    except GradwatchError as fault:  # serve would not start; the rest can be looked at
        return error(str(fault), advice, blocks_others=False)
    return ok(f"http {settings.http}, ingest {settings.ingest}, data {settings.data_name}")


def _keys(side: ServerSide) -> Finding:
    directory, warnings = side.settings.keys_dir, exposure_warnings(side.settings)
    if directory is None:
        if warnings:
            return warning("; ".join(warnings), "make keys with 'gradwatch keys', give --keys-dir")
        return skipped("no keys_dir is set: who is on this machine gets in")
    keys = read_keys(directory)
    for path in sorted(directory.glob("*.key")):
        try:
            read_private(path)
        except ValueError as fault:
            warnings.append(str(fault))
    if warnings:
        return warning("; ".join(warnings), "see docs/security.md")
    return ok(f"{directory}: {len(keys.clients)} clients, two tokens")


def _directory(side: ServerSide) -> Finding:
    directory = side.settings.data
    if side.settings.store is not None:
        return skipped("nothing is kept on this disk")
    if directory.exists() and not directory.is_dir():
        return error(f"{directory} is no directory", f"move it away, {_ANOTHER}")
    there = _existing(directory)
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        text = f"{there} (owner {there.stat().st_uid}) cannot be written by user {os.getuid()}"
        return error(text, f"run: chown -R {os.getuid()} {there}, {_ANOTHER}")
    if (kind := side.store.network_type) is not None:
        text = f"{directory} is on a network file system ({kind}), where it may be damaged"
        if not side.settings.allow_network_fs:
            return error(text, "choose a local disk with --data, or set allow_network_fs")
        return warning(f"{text}; allow_network_fs is set", "choose a local disk with --data")
    if not directory.exists():
        return ok(f"{directory.absolute()} is not there yet: serve makes it")
    status = directory.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warning(
            f"{directory}: mode {mode:04o} lets others in", f"run: chmod 700 {directory}"
        )
    if status.st_uid != os.getuid():
        text = f"{directory} is of user {status.st_uid}, this is user {os.getuid()}"
        return warning(text, "run this, and gradwatch serve, as the user that it belongs to")
    return ok(f"{directory.absolute()}, mode {mode:04o}")


def _disk(side: ServerSide) -> Finding:
    settings = side.settings
    if settings.store is not None:
        return skipped("nothing is kept on this disk")
    sizes = os.statvfs(_existing(settings.data))
    free = sizes.f_bavail * sizes.f_frsize
    limit = settings.log_max_bytes + settings.curves_max_bytes + settings.alerts_max_bytes
    grows = max(limit - side.store.used_bytes, 0)
    text = f"{_size(free)} free, the data may grow by {_size(grows)}"
    if free < min(LEAST_FREE_BYTES, grows) or (sizes.f_files and not sizes.f_favail):
        return error(f"{text}: as good as full", f"make room, {_ANOTHER}")
    if free < grows:
        advice = "make room, or lower log_max_bytes, curves_max_bytes or alerts_max_bytes"
        return warning(f"{text}: when it is full nothing more is taken in", advice)
    return ok(text)


def _database(side: ServerSide) -> Finding:
    if side.settings.store is not None:
        return _nodes(side)
    store, directory = side.store, side.settings.data
    if store.written_ns is None:
        return skipped("there is none yet")
    if store.schema is not None and store.schema != store.newest_schema:
        text = f"schema version {store.schema}, this gradwatch reads {store.newest_schema}"
        return error(text, f"move it away to start afresh, {_ANOTHER}")
    if not store.is_ours:
        text = f"the database in {directory} does not begin as one of gradwatch"
        return error(text, f"move it away to start afresh, {_ANOTHER}")
    if store.holder is not None:
        return ok(f"{_size(store.used_bytes)}, in use by an aggregator (pid {store.holder})")
    return ok(f"{_size(store.used_bytes)}, no aggregator has it")


def _nodes(side: ServerSide) -> Finding:
    try:
        nodes = [(node.http or "one without an address", node.has_lease) for node in side.nodes]
    except GradwatchError as fault:
        return error(str(fault), "see to PostgreSQL, or choose another one with --store")
    holders = [name for name, has_lease in nodes if has_lease]
    waiting = [name for name, has_lease in nodes if not has_lease]
    text = f"has the lease: {holders[0]}" if holders else "no node has the lease"
    return ok(f"{side.settings.data_name}: {text}; waiting: {', '.join(waiting) or 'none'}")


def _http_address(side: ServerSide) -> Finding:
    address = side.settings.http
    host, port = split_address(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except (OSError, UnicodeError) as fault:
        if getattr(fault, "errno", None) != errno.EADDRINUSE:
            return _unavailable(address, fault, "--http")
    else:
        return ok(f"{address} can be had")
    if side.running is None:
        text = f"{address} is taken by something that is no aggregator"
        return error(text, f"give a free one with --http; 'ss -ltnp sport = :{port}' names it")
    return _taken(side, address, "--http", is_own=side.is_own)


def _ingest_address(side: ServerSide) -> Finding:
    endpoint = side.settings.ingest
    host, port = endpoint_host(endpoint), endpoint.rpartition(":")[2]
    wanted = endpoint.removesuffix(":0") + ":*" if port == "0" and host is not None else endpoint
    reached = endpoint if host is None else f"tcp://{_near(host)}:{port}"
    # Whoever binds the path of a Unix socket takes it from the one that listens there.
    is_taken = host is None and look_at(endpoint).speaks is not Speaks.NOTHING
    if not is_taken and (fault := _bind_fault(wanted)) is not None:
        if fault.errno != errno.EADDRINUSE:
            return _unavailable(endpoint, fault, "--ingest")
        is_taken = True
    if not is_taken:
        return ok(f"{endpoint} can be had")
    peer = look_at(reached)
    if peer.speaks not in {Speaks.ROUTER, Speaks.CURVE}:
        return error(f"{endpoint} is taken: there is {peer.what}", "give a free one with --ingest")
    told = side.running.fields.get("ingest") if side.running is not None else None
    # An aggregator that listens on all addresses does not tell its port.
    is_there = told is None or str(told).rpartition(":")[2] == port
    return _taken(side, endpoint, "--ingest", is_own=side.is_own and is_there)


def _aggregator(side: ServerSide) -> Finding:
    if side.running is None or not side.is_own:
        return skipped("none with this data answers at the HTTP address")
    answer = side.ask("/readyz")
    if answer.status != http.client.OK:
        return error(f"it takes nothing in: {answer.why}", "see its log, and docs/reliability.md")
    if "lost" in answer.fields:
        return warning(f"it runs, but {answer.fields['lost']}", "see docs/reliability.md")
    return ok(f"version {side.running.fields['version']} runs, and takes records in")


def _clock(side: ServerSide) -> Finding:
    now_ns, written_ns = time.time_ns(), side.store.written_ns
    if now_ns < FIRST_NS:
        return error(f"it is {_stamp(now_ns)} here: the clock was never set", "set it (NTP)")
    if written_ns is not None and written_ns - now_ns > MOST_AHEAD_S * 1e9:
        text = f"the data was last written at {_stamp(written_ns)}, now it is {_stamp(now_ns)}"
        return warning(text, "set the clock (NTP); it was ahead then, or is behind now")
    return ok(_stamp(now_ns))


def _taken(side: ServerSide, address: str, option: str, *, is_own: bool) -> Finding:
    if is_own:
        return ok(f"{address} is taken by the aggregator that has this data")
    text = f"{address} is taken by an aggregator that does not have {side.settings.data_name}"
    return error(text, f"give the --data of that one, or a free address with {option}")


def _unavailable(address: str, fault: Exception, option: str) -> Finding:
    text = f"{address} cannot be had: {getattr(fault, 'strerror', None) or fault}"
    return error(text, f"give an address of this machine, and a port from 1024 on, with {option}")


def _bind_fault(endpoint: str) -> zmq.ZMQError | None:
    """Bind for a moment by ZeroMQ, which takes names of interfaces, too."""
    context = zmq.Context()
    try:
        with context.socket(zmq.ROUTER) as socket_:
            socket_.setsockopt(zmq.LINGER, 0)
            socket_.setsockopt(zmq.IPV6, int("[" in endpoint))
            socket_.bind(endpoint)
    except zmq.ZMQError as fault:
        return fault
    finally:
        context.term()
    return None


def _near(host: str) -> str:
    return "127.0.0.1" if is_wildcard(host) else host


def _existing(path: Path) -> Path:
    """Return a path, or the nearest above it that is there."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB" if num_bytes >= 1 << 29 else f"{num_bytes >> 20} MiB"


def _stamp(time_ns: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ns // 10**9))


SERVER_CHECKS: Final[tuple[Check[ServerSide], ...]] = (
    Check("packages", "versions of gradwatch and of what the aggregator needs", _packages),
    Check("settings", "options, variables, the file, certificate, notification targets", _settings),
    Check("keys", "keys and tokens: owner, modes, pairs; who gets in", _keys, ("settings",)),
    Check("directory", "the data directory: place, owner, mode", _directory, ("settings",)),
    Check("disk", "free space against the limits of the data", _disk, ("directory",)),
    Check("database", "schema and holder of the data", _database, ("directory",)),
    Check("http-address", "the address of the HTTP API", _http_address, ("directory",)),
    Check("ingest-address", "the endpoint for records", _ingest_address, ("directory",)),
    Check("aggregator", "whether the one that runs takes records", _aggregator, ("directory",)),
    Check("clock", "the clock, beside the last change of the data", _clock, ("directory",)),
)
