"""A ZeroMQ socket as a client has one, for commands that speak with the ingest port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from gradwatch_server.errors import GradwatchError
from gradwatch_wire.keyfile import ClientKey


@contextmanager
def dealer(endpoint: str, key: ClientKey | None) -> Iterator[zmq.Socket[bytes]]:
    """Make a DEALER for an endpoint, which is not connected yet; close it at the end."""
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
        yield socket
    finally:
        socket.close(linger=0)
        context.term()


def connect(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Begin to connect.

    Raises:
        GradwatchError: If ZeroMQ does not take the endpoint.
    """
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        msg = f"cannot connect to {endpoint}: {error.strerror}"
        raise GradwatchError(msg) from error
