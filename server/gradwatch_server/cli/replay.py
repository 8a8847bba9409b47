"""`gradwatch replay`: sends spill files that a killed worker left, under their own numbers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import zmq

from gradwatch_server.cli.dealer import connect, dealer
from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError
from gradwatch_wire import ProtocolError, decode
from gradwatch_wire.keyfile import ClientKey, read_client_key
from gradwatch_wire.session.driver import send_due
from gradwatch_wire.session.endpoint import find_endpoint
from gradwatch_wire.session.session import Session
from gradwatch_wire.session.session_lock import SessionLock
from gradwatch_wire.session.spill_format import SpillError
from gradwatch_wire.session.spill_source import SpillSource, resumed_session
from gradwatch_wire.session.spilled_session import SpilledSession, first_paths
from gradwatch_wire.session.timing import ROUND_MS

SILENCE_S: Final = 15.0
"""An aggregator that says nothing this long is not there."""


class Replayed(NamedTuple):
    """A session of which everything is stored now, and the number of records sent for it."""

    source: SpilledSession
    num_sent: int


def sent_line(sent: Replayed) -> str:
    hello = sent.source.hello
    return f"{printable(hello.run)} rank {hello.rank}: {sent.num_sent} records sent, all stored"


def find_key(path: Path | None) -> ClientKey | None:
    """Read the key file given, else that of `GRADWATCH_KEYS`; None without either.

    Raises:
        GradwatchError: If it is missing, open to others, or no client's key.
    """
    key_path = path or os.environ.get("GRADWATCH_KEYS")
    try:
        return read_client_key(Path(key_path)) if key_path else None
    except ValueError as error:
        raise GradwatchError(str(error)) from error


def replay_files(
    paths: Iterable[Path], endpoint: str, key: ClientKey | None, *, remove: bool
) -> Iterator[Replayed]:
    """Send each session that the files belong to; yield it when everything of it is stored.

    Args:
        remove: Delete the files of a session once they are stored.

    Raises:
        GradwatchError: If a file is none of ours or in use, or the aggregator is not there or
            refuses a session.
    """
    endpoint = _checked(endpoint)
    sessions = [_open(path) for path in first_paths(_expanded(paths))]
    with dealer(endpoint, key) as socket:
        connect(socket, endpoint)
        for spilled in sessions:
            with _locked(spilled):
                num_sent = _replay(spilled, socket, endpoint)
                if remove:
                    spilled.remove()
            yield Replayed(spilled, num_sent)


def _checked(endpoint: str) -> str:
    try:
        return find_endpoint(endpoint)
    except ValueError as error:
        raise GradwatchError(str(error)) from error


@contextmanager
def _locked(spilled: SpilledSession) -> Iterator[None]:
    lock = SessionLock.acquire(spilled.paths[0].parent, spilled.session)
    if lock is None:
        msg = f"{spilled.paths[0]} is in use by a live process, which sends it itself"
        raise GradwatchError(msg)
    try:
        yield
    finally:
        lock.release(remove=True)


def _expanded(paths: Iterable[Path]) -> list[Path]:
    expanded: list[Path] = []
    for path in paths:
        files = sorted(path.glob("*.spill")) if path.is_dir() else [path]
        if not files:
            msg = f"{path}: no spill files in this directory"
            raise GradwatchError(msg)
        expanded += files
    return expanded


def _open(path: Path) -> SpilledSession:
    try:
        return SpilledSession.open(path)
    except SpillError as error:
        raise GradwatchError(str(error)) from error
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise GradwatchError(msg) from error


def _replay(spilled: SpilledSession, socket: zmq.Socket[bytes], endpoint: str) -> int:
    """Send one session until it is stored; return the number of records sent."""
    session = resumed_session(spilled)
    heard_s = time.monotonic()
    while not session.is_over:
        now_s = time.monotonic()
        if now_s - heard_s > SILENCE_S:
            msg = f"no aggregator answers at {endpoint}; give its ingest endpoint with --endpoint"
            raise GradwatchError(msg)
        send_due(session, lambda message: _send(socket, message), now_s)
        if socket.poll(ROUND_MS) and _receive(session, socket, endpoint, now_s):
            heard_s = now_s
    if session.refused:
        msg = f"the aggregator refuses this session: {session.refused!a}"
        raise GradwatchError(msg)
    return session.counters["sent"]


def _send(socket: zmq.Socket[bytes], message: bytes) -> bool:
    try:
        socket.send(message, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def _receive(
    session: Session[SpillSource], socket: zmq.Socket[bytes], endpoint: str, now_s: float
) -> bool:
    try:
        envelope = decode(socket.recv())
    except ProtocolError as error:
        msg = f"what answers at {endpoint} is no aggregator: {error}"
        raise GradwatchError(msg) from error
    session.alerts.clear()  # nobody trains what they are about
    return session.receive(envelope, now_s)
