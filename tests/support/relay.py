"""A TCP relay in a process of its own: one way to a port, which can be cut or hang."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Final

READ_BYTES: Final = 1 << 16


class Relay:
    """Passes on what comes, from its construction until it is closed.

    Args:
        endpoint: The TCP endpoint that it leads to.
    """

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        command = [sys.executable, "-m", "tests.support.relay", host, port]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = f"tcp://127.0.0.1:{self._process.stdout.readline().strip()}"

    def hang(self) -> None:
        """Take what is sent, and pass nothing on."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after it hung."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Cut all connections, and listen no more; also a second time."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while some := await reader.read(READ_BYTES):
        writer.write(some)
        await writer.drain()
    writer.close()


async def _serve(host: str, port: int) -> None:
    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        await asyncio.gather(_copy(reader, back), _copy(there, writer), return_exceptions=True)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - for the test
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
