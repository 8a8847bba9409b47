"""`gradwatch replay`: sends spill files that a killed worker left, under their own numbers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import zmq

from gradwatch_server.addresses import endpoint_host
from gradwatch_server.errors import GradwatchError
from gradwatch_wire import ProtocolError, decode
from gradwatch_wire.keyfile import ClientKey, read_client_key
from gradwatch_wire.session.replay import Replay
from gradwatch_wire.session.spill import SessionLock, SpilledSession, SpillError, first_paths

SILENCE_S: Final = 15.0
"""An aggregator that says nothing this long is not there."""

_POLL_MS: Final = 20


def find_key(path: Path | None) -> ClientKey | None:
    """Read the key file given, else that of `GRADWATCH_KEYS`; None without either.

    Raises:
        GradwatchError: If it is missing, open to others, or no client's key.
    """
    found = path or os.environ.get("GRADWATCH_KEYS")
    try:
        return read_client_key(Path(found)) if found else None
    except ValueError as error:
        raise GradwatchError(str(error)) from error


def replay_files(
    paths: Iterable[Path], endpoint: str, key: ClientKey | None, *, remove: bool
) -> Iterator[Replay]:
    """Send each session that the files belong to; yield it when everything of it is stored.

    Args:
        paths: Any segment of each session, or directories of them.
        endpoint: Where the aggregator listens.
        key: What the client shows to an aggregator that asks.
        remove: Delete the files of a session once they are stored.

    Raises:
        GradwatchError: If a file is none of ours or in use, or the aggregator is not there or
            refuses a session.
    """
    endpoint_host(endpoint)
    sessions = [_open(path) for path in first_paths(_expanded(paths))]
    with _connected(endpoint, key) as socket:
        for session in sessions:
            directory = session.paths[0].parent
            claim = SessionLock.take(directory, session.session)
            if claim is None:
                msg = f"{session.paths[0]} is in use by a live process, which sends it itself"
                raise GradwatchError(msg)
            replay = Replay(session)
            try:
                _run(replay, socket, endpoint)
                if remove:
                    session.remove()
            finally:
                claim.release(remove=True)
            yield replay


def _expanded(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        own = sorted(path.glob("*.spill")) if path.is_dir() else [path]
        if not own:
            msg = f"{path}: no spill files in this directory"
            raise GradwatchError(msg)
        found += own
    return found


def _open(path: Path) -> SpilledSession:
    try:
        return SpilledSession.open(path)
    except SpillError as error:
        raise GradwatchError(str(error)) from error
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise GradwatchError(msg) from error


@contextmanager
def _connected(endpoint: str, key: ClientKey | None) -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        if key is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, key.server.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            msg = f"cannot connect to {endpoint}: {error.strerror}"
            raise GradwatchError(msg) from error
        yield socket
    finally:
        socket.close(linger=0)
        context.term()


def _run(replay: Replay, socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Send one session until it is stored."""
    heard_s = time.monotonic()
    while not replay.over:
        now_s = time.monotonic()
        if now_s - heard_s > SILENCE_S:
            msg = f"no aggregator answers at {endpoint}; give its ingest endpoint with --endpoint"
            raise GradwatchError(msg)
        while (frames := replay.due(now_s)) is not None:
            try:
                socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                break
            replay.sent(now_s)
        if socket.poll(_POLL_MS):
            try:
                if replay.receive(decode(socket.recv_multipart()), now_s):
                    heard_s = now_s
            except ProtocolError as error:
                msg = f"what answers at {endpoint} is no aggregator: {error}"
                raise GradwatchError(msg) from error
    if replay.refused:
        msg = f"the aggregator refuses this session: {replay.refused!a}"
        raise GradwatchError(msg)
