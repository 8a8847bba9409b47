"""Real NATS servers with JetStream, alone or three as a cluster, on loopback."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import httpx
import psutil

from tests.support.place import LOOPBACK, Place
from tests.support.ports import ReservedPort
from tests.support.programs import program
from tests.support.waiting import PATIENCE_S, wait_until

CLUSTER: Final = "gradwatch-test"


class NATSServer:
    """One server. Its directory outlives its process.

    Args:
        directory: Where it keeps its files.
        name: What it is called in its cluster.
        routes: Where the servers of its cluster find each other; none if it is alone.
        route: The port of the one of them that is its own.
        extra: Lines added to its configuration.
        max_file: How much JetStream may store.
        place: Where it runs.
        advertise: Where other servers are told to find it, its own address if nothing is said.
    """

    def __init__(
        self,
        directory: Path,
        name: str = "one",
        routes: Sequence[str] = (),
        route: ReservedPort | None = None,
        extra: str = "",
        max_file: str = "4GB",
        place: Place = LOOPBACK,
        advertise: str = "",
    ) -> None:
        self._binary = program("nats-server", "nats-server")
        self.name = name
        self._directory = directory
        directory.mkdir(parents=True)
        self._ports = ReservedPort(), ReservedPort()
        self._place, host = place, place.host
        self._route = route
        client, monitor = (port.number for port in self._ports)
        self.url = f"nats://{host}:{client}"
        self._monitor_url = f"http://{host}:{monitor}"
        lines = [
            f"server_name: {name}",
            f"listen: {host}:{client}",
            f"http: {host}:{monitor}",
            f'jetstream: {{store_dir: "{directory}", max_mem: 64MB, max_file: {max_file}}}',
            extra,
        ]
        if route is not None:
            urls = ", ".join(f"nats://{each}" for each in routes)
            listen = f"listen: {host}:{route.number}"
            told = f', advertise: "{advertise}"' if advertise else ""
            lines.append(f"cluster: {{name: {CLUSTER}, {listen}, routes: [{urls}]{told}}}")
        (directory / "nats.conf").write_text("\n".join(lines))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, with what it has in its directory, without waiting."""
        with (self._directory / "log.txt").open("ab") as log:
            configuration = str(self._directory / "nats.conf")
            command = [*self._place.prefix, self._binary, "-c", configuration]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    @property
    def pid(self) -> int:
        """The process that runs."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def log(self) -> str:
        """What it wrote."""
        return (self._directory / "log.txt").read_text("utf-8")

    def is_ready(self) -> bool:
        """Whether it takes clients, and JetStream has its files and, in a cluster, a leader."""
        assert self._process is not None
        assert self._process.poll() is None, self.log
        try:
            answer = httpx.get(f"{self._monitor_url}/healthz", trust_env=False, timeout=5.0)
        except httpx.TransportError:
            return False
        return answer.is_success

    def change(self, old: str, new: str) -> None:
        """Put something else into its configuration, which it reads anew if it runs."""
        path = self._directory / "nats.conf"
        path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
        if self._process is not None:
            self._signal(signal.SIGHUP)

    def num_messages(self, stream: str) -> int:
        """Return how many messages of a stream this very server has."""
        found = httpx.get(
            f"{self._monitor_url}/jsz?accounts=true&streams=true", trust_env=False, timeout=5.0
        ).json()
        details = found["account_details"][0]["stream_detail"]
        return next(int(own["state"]["messages"]) for own in details if own["name"] == stream)

    def kill(self) -> None:
        """End it at once, wherever it is."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Have it end in order."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Let it do nothing until `go_on`; its connections stay."""
        self._signal(signal.SIGSTOP)
        wait_until(lambda: self._status == psutil.STATUS_STOPPED, "the server stands still")

    @property
    def _status(self) -> str:
        assert self._process is not None
        return psutil.Process(self._process.pid).status()

    def go_on(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._signal(how)
            self._signal(signal.SIGCONT)
            self._process.wait(PATIENCE_S)
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def close(self) -> None:
        """End it, and give its ports back."""
        self._end(signal.SIGKILL)
        for port in (*self._ports, self._route):
            if port is not None:
                port.close()


class NATSServers:
    """Servers that are a cluster if they are several, ready for streams.

    Args:
        directory: Where they keep their files.
        num_servers: How many, 1 or 3.
        extra: Lines added to the configuration of each.
        places: Where each of them runs; on loopback if nothing is said.
        max_file: How much JetStream may store on each.
    """

    def __init__(
        self,
        directory: Path,
        num_servers: int = 1,
        extra: str = "",
        places: Sequence[Place] = (),
        max_file: str = "4GB",
    ) -> None:
        places = places or [LOOPBACK] * num_servers
        ports = [ReservedPort() for _ in places] if num_servers > 1 else [None]
        routes = [
            f"{place.host}:{port.number}"
            for place, port in zip(places, ports, strict=True)
            if port is not None
        ]
        self.servers = [
            NATSServer(
                directory / f"nats-{number}", f"n{number}", routes, port, extra, max_file, place
            )
            for number, (place, port) in enumerate(zip(places, ports, strict=True))
        ]
        self.wait_until_ready()

    @property
    def urls(self) -> list[str]:
        """Where clients connect."""
        return [server.url for server in self.servers]

    def wait_until_ready(self) -> None:
        """Wait until all servers are."""
        wait_until(lambda: all(own.is_ready() for own in self.servers), "NATS servers are ready")

    def close(self) -> None:
        """End all that run."""
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
