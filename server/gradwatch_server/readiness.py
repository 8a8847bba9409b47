"""Tells whoever started the process that it serves now, in systemd's words (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

READY: Final = b"READY=1"


def tell_ready() -> None:
    """Send a datagram to the socket that the environment names; without one nobody has asked."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # of Linux's abstract names, which are in no file system
        address = "\0" + address[1:]
    # A service goes on without it: whoever waits gives up by himself, and says so.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(READY, address)
