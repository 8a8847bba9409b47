"""By apprise: what arrives at a webhook and in a mailbox, and what is made of its errors."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, cast

import pytest

from gradwatch_server.notify.notification import Notification
from gradwatch_server.notify.notifiers.apprise import AppriseNotifier
from gradwatch_server.notify.notifiers.base import DeliveryError
from gradwatch_server.notify.plan import NotificationQueue
from gradwatch_server.notify.policy import Policy
from tests.server.notify.alerts import event
from tests.support.receiver import Receive


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


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    made = Mailbox()
    yield made
    made.close()


def notice(**changes: Any) -> Notification:
    plan = NotificationQueue(Policy(group_wait_s=0.0))
    stored = event(1, **changes)
    plan.accept(stored, 100.0)
    batch = plan.due(100.0)
    assert batch is not None
    return Notification(batch, lambda _: stored.alert, "http://gw:8420", 100.0)


@pytest.mark.slow
def test_a_mail_has_the_message_as_it_is(mailbox: Mailbox) -> None:
    """Line by line, and a name is no markup in it."""
    url = f"mailto://127.0.0.1:{mailbox.port}/?mode=insecure&from=gw@example.org&to=ada@example.org"
    origin = {"rank": 3, "num_ranks": 1, "layer": "<b>h", "value": "NaN", "threshold": None}
    AppriseNotifier(url).send(notice(origin=origin))

    (mail,) = mailbox.mails
    assert mail["subject"] == "[critical] gpt: nonfinite at step 7, <b>h"
    assert mail["to"] == "ada@example.org"
    body = mail.get_body(("plain",))
    assert body is not None
    assert "run gpt, step 7, rank 3, <b>h, value NaN\n" in body.get_content().replace("\r\n", "\n")
    html = mail.get_body(("html",))
    assert html is None or "<b>h" not in html.get_content()


def test_where_nobody_answers_nobody_knows_whether_it_arrived(
    receive: Receive, capfd: pytest.CaptureFixture[str]
) -> None:
    """The connection is gone, or the receiver says nothing in time; apprise says nothing else."""
    receiver = receive()
    receiver.hang()
    with pytest.raises(DeliveryError, match="Connection error") as caught:
        AppriseNotifier(receiver.url + "?rto=0.2").send(notice())

    assert not caught.value.is_refused
    assert capfd.readouterr().err == ""
