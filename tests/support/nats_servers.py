"""Real NATS servers with JetStream, alone or three as a cluster, on loopback."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Final, Self

import httpx
import psutil

from tests.support.ports import ReservedPort
from tests.support.programs import program
from tests.support.waiting import PATIENCE_S, wait_until

CLUSTER: Final = "gradwatch-test"


class NATSServer:
    """One server. Its directory outlives its process.

    Args:
        directory: Where it keeps its files.
        name: What it is called in its cluster.
        routes: Ports on which the servers of its cluster find each other; none if it is alone.
        route: The one of them that is its own.
        extra: Lines added to its configuration.
        max_file: How much JetStream may store.
    """

    def __init__(
        self,
        directory: Path,
        name: str = "one",
        routes: tuple[int, ...] = (),
        route: ReservedPort | None = None,
        extra: str = "",
        max_file: str = "4GB",
    ) -> None:
        self._binary = program("nats-server", "nats-server")
        self.name = name
        self._directory = directory
        directory.mkdir(parents=True)
        self._ports = ReservedPort(), ReservedPort()
        self._route = route
        client, monitor = (port.number for port in self._ports)
        self.url = f"nats://127.0.0.1:{client}"
        self._monitor_url = f"http://127.0.0.1:{monitor}"
        lines = [
            f"server_name: {name}",
            f"listen: 127.0.0.1:{client}",
            f"http: 127.0.0.1:{monitor}",
            f'jetstream: {{store_dir: "{directory}", max_mem: 64MB, max_file: {max_file}}}',
            extra,
        ]
        if route is not None:
            urls = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
            listen = f"listen: 127.0.0.1:{route.number}"
            lines.append(f"cluster: {{name: {CLUSTER}, {listen}, routes: [{urls}]}}")
        (directory / "nats.conf").write_text("\n".join(lines))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, with what it has in its directory, without waiting."""
        with (self._directory / "log.txt").open("ab") as log:
            command = [self._binary, "-c", str(self._directory / "nats.conf")]
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
        max_file: How much JetStream may store on each.
    """

    def __init__(
        self, directory: Path, num_servers: int = 1, extra: str = "", max_file: str = "4GB"
    ) -> None:
        routes = [ReservedPort() for _ in range(num_servers)] if num_servers > 1 else [None]
        ports = tuple(port.number for port in routes if port is not None)
        self.servers = [
            NATSServer(directory / f"nats-{number}", f"n{number}", ports, route, extra, max_file)
            for number, route in enumerate(routes)
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
