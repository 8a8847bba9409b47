"""Three NATS servers of which two can be cut off from each other, while both reach the third."""

from __future__ import annotations

from pathlib import Path

from tests.support.nats_servers import NATSServer, NATSServers
from tests.support.ports import ReservedPort
from tests.support.relay import Relay


class DividedServers(NATSServers):
    """The first and the second one reach each other by relays only, which may hang.

    Args:
        directory: Where they keep their files.
    """

    def __init__(self, directory: Path) -> None:
        ports = [ReservedPort() for _ in range(3)]
        self._relays = [Relay(port.endpoint) for port in ports[:2]]
        one, two, three = (f"127.0.0.1:{port.number}" for port in ports)
        by_relay = [own.endpoint.removeprefix("tcp://") for own in self._relays]
        routes = ([one, by_relay[1], three], [by_relay[0], two, three], [one, two, three])
        told = (*by_relay, "")  # or the third one would tell them of each other
        self.servers = [
            NATSServer(
                directory / f"nats-{number}", f"n{number}", own, port, advertise=told[number]
            )
            for number, (own, port) in enumerate(zip(routes, ports, strict=True))
        ]
        self.wait_until_ready()

    def cut(self) -> None:
        """Let nothing through between the first and the second one; connections stay."""
        for relay in self._relays:
            relay.hang()

    def mend(self) -> None:
        """Let them reach each other again."""
        for relay in self._relays:
            relay.resume()

    def close(self) -> None:
        """End all that run."""
        super().close()
        for relay in self._relays:
            relay.close()
