"""Program that imports slow modules once, and forks a process for each Python file on request.

Importing torch or the aggregator takes more than a second of CPU; a fork takes milliseconds. Each
connection asks for one process: a JSON object and the three standard files. The answers are the
process's id, and later its exit status. A process ends as any interpreter does: the fork returns to
the top of this file, and everything that `python FILE` does at its end happens.

Run as `python fork_server.py SOCKET MODULE...`. The program ends when its standard input does.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import types
from pathlib import Path
from typing import Any, Final

REQUEST_BYTES: Final = 1 << 20


class ForkServer:
    """Forks of this process, and the connections that wait for their ends.

    Args:
        listener: Socket on which processes are asked for.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._connections: dict[int, socket.socket] = {}  # by id of the process
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector = selectors.DefaultSelector()
        for file in (listener, self._wake_read, sys.stdin):
            self._selector.register(file, selectors.EVENT_READ)

    def run(self) -> dict[str, Any] | None:
        """Return a request in each new process, and None when standard input has ended."""
        while True:
            ready = {key.fileobj for key, _ in self._selector.select()}
            if self._wake_read in ready:
                os.read(self._wake_read, REQUEST_BYTES)
                self._report_ended()
            if self._listener in ready and (request := self._fork()) is not None:
                return request
            if sys.stdin in ready:
                for process_id in self._connections:
                    os.kill(process_id, signal.SIGKILL)
                return None

    def _fork(self) -> dict[str, Any] | None:
        """Accept one request; return it in the new process, and None in this one."""
        connection, _ = self._listener.accept()
        body, files, *_ = socket.recv_fds(connection, REQUEST_BYTES, 3)
        process_id = os.fork()
        if process_id == 0:
            connection.close()
            self._leave()
            for number, file in enumerate(files):
                os.dup2(file, number)
        for file in files:
            os.close(file)
        if process_id == 0:
            request: dict[str, Any] = json.loads(body)
            return request
        self._connections[process_id] = connection
        connection.sendall(f"{process_id}\n".encode())
        return None

    def _leave(self) -> None:
        """Let go of everything that belongs to the fork server, in a new process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for connection in (self._listener, *self._connections.values()):
            connection.close()
        for descriptor in (self._wake_read, self._wake_write):
            os.close(descriptor)

    def _report_ended(self) -> None:
        """Send the exit status of each process that has ended to the test that started it."""
        while self._connections:
            process_id, status = os.waitpid(-1, os.WNOHANG)
            if process_id == 0:
                return
            with self._connections.pop(process_id) as connection:
                try:
                    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                except OSError:  # the test did not wait for it
                    continue


def become(request: dict[str, Any]) -> None:
    """Take the arguments, environment and directory of the request, and run its file."""
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["directory"])
    file, *arguments = request["arguments"]
    sys.argv = [file, *arguments]
    sys.path[0] = str(Path(file).resolve().parent)
    main = types.ModuleType("__main__")
    main.__file__ = file
    sys.modules["__main__"] = main
    exec(compile(Path(file).read_bytes(), file, "exec"), main.__dict__)


path, *modules = sys.argv[1:]
for name in modules:
    importlib.import_module(name)
# A fork neither walks the imported objects nor writes to their pages.
gc.collect()
gc.freeze()
with socket.socket(socket.AF_UNIX) as server:
    # The name appears once the socket listens: who connects before is refused.
    server.bind(f"{path}.new")
    server.listen()
    Path(f"{path}.new").rename(path)
    asked = ForkServer(server).run()
if asked is not None:
    become(asked)
