"""Speaks with an ingest port as a client does, and leaves nothing there.

A BEAT of a session that the aggregator does not know is answered, and changes nothing.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from enum import Enum
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from gradwatch_server.cli.dealer import connect, dealer
from gradwatch_wire import Beat, Envelope, ProtocolError, decode, encode
from gradwatch_wire.keyfile import ClientKey

HANDSHAKE_S: Final = 5.0
ANSWER_S: Final = 5.0
NUM_ASKED: Final = 5
"""How often it is asked, for the time of a round trip."""

PATIENCE: Final = 3
"""Handshakes that the other side may end in a row: one alone is a restart of it."""

_EVENTS: Final = (
    zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
)


class Handshake(Enum):
    """How the handshake went."""

    DONE = "done"
    REFUSED = "refused"  # our key is not known there
    PROTOCOL = "protocol"  # keys are asked for by one side only
    CUT = "cut"  # the other side ended it, again and again
    SILENT = "silent"  # the other side did not answer


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came of it.

    Args:
        handshake: How the handshake went.
        round_trips_s: How long answers took, s; empty if none came.
        babble: What is wrong with an answer that is none of an aggregator, else empty.
    """

    handshake: Handshake
    round_trips_s: tuple[float, ...] = ()
    babble: str = ""


def exchange(endpoint: str, key: ClientKey | None) -> Exchange:
    """Shake hands, ask `NUM_ASKED` times, and hang up.

    Raises:
        GradwatchError: If ZeroMQ does not take the endpoint.
    """
    with dealer(endpoint, key) as socket:
        monitor = socket.get_monitor_socket(_EVENTS)
        try:
            connect(socket, endpoint)
            how = _shaken(monitor)
        finally:
            socket.disable_monitor()
            monitor.close(linger=0)
        if how is not Handshake.DONE:
            return Exchange(how)
        return _asked(socket)


def _shaken(monitor: zmq.Socket[bytes]) -> Handshake:
    until_s, num_cut = time.monotonic() + HANDSHAKE_S, 0
    while (left_s := until_s - time.monotonic()) > 0:
        if not monitor.poll(round(1e3 * left_s)):
            break
        message = recv_monitor_message(monitor)
        event, value = message["event"], message["value"]
        if event == zmq.Event.HANDSHAKE_SUCCEEDED:
            return Handshake.DONE
        if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
            return Handshake.REFUSED
        if event == zmq.Event.HANDSHAKE_FAILED_PROTOCOL:
            return Handshake.PROTOCOL
        num_cut += value != errno.EAGAIN  # with it nothing was answered
        if num_cut >= PATIENCE:
            return Handshake.CUT
    return Handshake.CUT if num_cut else Handshake.SILENT


def _asked(socket: zmq.Socket[bytes]) -> Exchange:
    envelope = Envelope(session=os.urandom(16), record=Beat(last_step=-1, since_s=0.0))
    took_s: list[float] = []
    for _ in range(NUM_ASKED):
        began_s = time.monotonic()
        try:
            socket.send_multipart(encode(envelope), zmq.NOBLOCK)
        except zmq.Again:  # it hung up
            break
        if not socket.poll(round(1e3 * ANSWER_S)):
            break
        try:
            decode(socket.recv_multipart())
        except ProtocolError as fault:
            return Exchange(Handshake.DONE, babble=str(fault))
        took_s.append(time.monotonic() - began_s)
    return Exchange(Handshake.DONE, tuple(took_s))
