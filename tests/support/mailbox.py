"""A mail server that keeps what it is given: as much of SMTP as a client needs to send."""

from __future__ import annotations

import socketserver
import threading
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import cast


class Mailbox:
    """Listens on loopback.

    Attributes:
        mails: What came, decoded.
    """

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self._server = _Server(("127.0.0.1", 0), _Session)
        self._server.mailbox = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    mailbox: Mailbox


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self._say("220 mailbox")
        while line := self.rfile.readline():
            command = line[:4].upper()
            if command == b"DATA":
                self._say("354 go on")
                self._take()
            self._say("250 fine")
            if command == b"QUIT":
                return

    def _take(self) -> None:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        mail = message_from_bytes(b"".join(lines), policy=policy.default)
        server = cast("_Server", self.server)
        server.mailbox.mails.append(mail)

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())
