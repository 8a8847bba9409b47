"""The CURVE key of this process, for an aggregator that requires one."""

from __future__ import annotations

import os
from pathlib import Path

import zmq

from gradwatch_wire.keyfile import ClientKey, read_client_key


def find_key(keys: str | os.PathLike[str] | None) -> ClientKey | None:
    """Read the key file named by the argument, else by `GRADWATCH_KEYS`; None without either.

    Raises:
        TypeError: If *keys* is no path.
        ValueError: If the file is missing, open to others, or no client's key.
    """
    if keys is not None and not isinstance(keys, (str, os.PathLike)):
        msg = f"keys: a path, got {type(keys).__name__}"
        raise TypeError(msg)
    found = keys or os.environ.get("GRADWATCH_KEYS")
    if not found:
        return None
    path = Path(found)
    try:
        key = read_client_key(path)
        _check_pair(key, path)
    except ValueError as error:
        msg = f"keys: {error}"
        raise ValueError(msg) from error
    return key


def use_key(socket: zmq.Socket[bytes], key: ClientKey) -> None:
    """Make a socket, before it connects, encrypt what it sends, to one aggregator only."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, key.server.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())


def _check_pair(key: ClientKey, path: Path) -> None:
    try:
        fits = zmq.curve_public(key.secret.encode()) == key.public.encode()
    except zmq.ZMQError:  # five characters of Z85 can be more than four bytes hold
        fits = False
    if not fits:
        msg = f"key file {path}: 'public' is not the public key of 'secret'"
        raise ValueError(msg)
