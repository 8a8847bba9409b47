"""Machines whose network can be cut: network namespaces on one bridge, without touching the host's.

This process goes into a namespace of its own, which has the bridge; each machine is one more, which
a sleeping process holds open. All of it is gone when these processes are.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from tests.support.place import LOOPBACK, Place
from tests.support.waiting import wait_until

NUM_MACHINES: Final = 3
CENTRE: Final = "10.77.0.1"
"""The address of this process, on a network that nobody else can see."""

_CLONE_NEWNET: Final = 0x40000000


class Machines:
    """Three machines, and the place in the middle of them where all else runs.

    Args:
        places: Where processes of each machine run.
        centre: Where those run that are of none.
        holders: The processes that hold the namespaces open; none if all is on loopback.
    """

    def __init__(
        self,
        places: list[Place],
        centre: Place,
        holders: tuple[subprocess.Popen[bytes], ...] = (),
    ) -> None:
        self.places = places
        self.centre = centre
        self._holders = holders

    @property
    def can_be_cut(self) -> bool:
        """Whether the network between two of them can be cut."""
        return bool(self._holders)

    def cut(self, one: int, other: int) -> None:
        """Let nothing through between two machines; each of them reaches all else."""
        for number in (one, other):
            _isolate(number, "on")

    def mend(self, one: int, other: int) -> None:
        """Let them reach each other again."""
        for number in (one, other):
            _isolate(number, "off")

    def close(self) -> None:
        """Let the namespaces go."""
        for holder in self._holders:
            holder.kill()
            holder.wait()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the namespaces go."""
        self.close()


def make_machines() -> Machines:
    """Return machines with a network between them, or three times loopback where that is refused.

    Call it once, before this process has another thread or process that is to reach them.
    """
    if not _enter_network():
        return Machines([LOOPBACK] * NUM_MACHINES, LOOPBACK)
    _ip("link", "set", "lo", "up")
    _ip("link", "add", "bridge0", "type", "bridge")
    _ip("address", "add", f"{CENTRE}/24", "dev", "bridge0")
    _ip("link", "set", "bridge0", "up")
    holders = tuple(_make_machine(number) for number in range(NUM_MACHINES))
    places = [Place(_address(number), _prefix(holder.pid)) for number, holder in enumerate(holders)]
    return Machines(places, Place(CENTRE), holders)


def _enter_network() -> bool:
    """Put this process into a network namespace of its own; return whether that is allowed."""
    programs = ("ip", "nsenter", "setpriv", "unshare")
    if sys.platform != "linux" or not all(shutil.which(name) for name in programs):
        return False
    refused: int = ctypes.CDLL(None).unshare(_CLONE_NEWNET)  # `os.unshare` is of Python 3.12
    return refused == 0


def _make_machine(number: int) -> subprocess.Popen[bytes]:
    # It goes with this process, however that ends.
    sleep = ("setpriv", "--pdeathsig=KILL", "unshare", "--net", "sleep", "infinity")
    holder = subprocess.Popen(sleep)
    wait_until(lambda: _network_of(holder.pid) != _network_of(os.getpid()), "a namespace")
    peer = ("peer", "name", "eth0", "netns", str(holder.pid))
    _ip("link", "add", _port(number), "type", "veth", *peer)
    _ip("link", "set", _port(number), "master", "bridge0", "up")
    inside = _prefix(holder.pid)
    _ip("link", "set", "lo", "up", prefix=inside)
    _ip("address", "add", f"{_address(number)}/24", "dev", "eth0", prefix=inside)
    _ip("link", "set", "eth0", "up", prefix=inside)
    return holder


def _network_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def _prefix(pid: int) -> tuple[str, ...]:
    return ("nsenter", f"--net=/proc/{pid}/ns/net")


def _port(number: int) -> str:
    return f"machine{number}"


def _address(number: int) -> str:
    return f"10.77.0.{11 + number}"


def _isolate(number: int, state: str) -> None:
    """Say whether a machine is cut off from the others that are."""
    _ip("link", "set", "dev", _port(number), "type", "bridge_slave", "isolated", state)


def _ip(*arguments: str, prefix: tuple[str, ...] = ()) -> None:
    subprocess.run([*prefix, "ip", *arguments], check=True)
