"""Rounds of a session, whatever the connection is.

A round is: take in what has arrived (`receive`), add what was produced, send what is due (`send`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gradwatch_wire.records import Envelope
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session
from gradwatch_wire.session.timing import CLOSE_S, MAX_BATCH

Send = Callable[[bytes], bool]
"""Hands a message to the connection; False if it takes none for now."""


def send_due(session: Session[Any], send: Send, now_s: float) -> None:
    """Send the HELLO that is due, or records as far as the session and the connection let us."""
    send_hello(session, send, now_s)
    send_records(session, send)
    beat = session.credit_beat(now_s)
    if beat is not None:
        send(beat)


def send_hello(session: Session[Any], send: Send, now_s: float) -> None:
    """Send the HELLO that is due, if one is."""
    hello = session.due(now_s)
    if hello is not None and send(hello):
        session.greeted(now_s)


def send_records(session: Session[Any], send: Send) -> bool:
    """Send records as far as the session and the connection let us, up to `MAX_BATCH`.

    Return whether the newest record there is was sent in this round.
    """
    for num_sent in range(MAX_BATCH):
        message = session.peek()
        if message is None:
            return num_sent > 0 and session.has_sent_all
        if not send(message):
            break
        session.sent()
    return False


class OtherSessions(Protocol):
    """Sessions that use the same connection."""

    def receive(self, envelope: Envelope, now_s: float) -> None:
        """Take in an answer, if it is for one of them."""

    def send(self, send: Send, now_s: float) -> None:
        """Send what is due."""

    def greet_again(self) -> None:
        """Say HELLO at once: the connection is another one."""


class SessionDriver:
    """Drives the session of a process that lives, from its first HELLO until it has closed."""

    def __init__(
        self, session: Session[Outbox], now_s: float, others: OtherSessions | None = None
    ) -> None:
        self.session = session
        self.others = others
        self.is_training: Callable[[], bool | None] = lambda: None
        self.last_step = -1
        self._stepped_at_s = now_s
        self._deadline_s: float | None = None

    def stepped(self, step: int, now_s: float) -> None:
        """Note how far the training is, which BEAT tells."""
        if step != self.last_step:
            self.last_step, self._stepped_at_s = step, now_s

    def receive(self, envelope: Envelope, now_s: float) -> None:
        """Take in an answer, whichever session it is for."""
        if not self.session.receive(envelope, now_s) and self.others is not None:
            self.others.receive(envelope, now_s)

    def send(self, send: Send, now_s: float) -> None:
        """Send what is due: HELLO, BEAT, what other sessions have, records."""
        send_hello(self.session, send, now_s)
        if self.others is not None and not self.is_closing:
            self.others.send(send, now_s)
        if send_records(self.session, send):
            self.session.postpone_beat(now_s)
        since_s = now_s - self._stepped_at_s
        beat = self.session.beat(self.last_step, since_s, now_s, self.is_training)
        if beat is not None:
            send(beat)

    def greet_again(self) -> None:
        """Begin with HELLO: the connection is another one."""
        self.session.greet_again()
        if self.others is not None:
            self.others.greet_again()

    def close(self, now_s: float) -> None:
        """Begin to close: from now on there is `CLOSE_S` until it `is_closed`."""
        self._deadline_s = now_s + CLOSE_S

    @property
    def is_closing(self) -> bool:
        """End of the session: true once `close` was called."""
        return self._deadline_s is not None

    def may_produce(self, now_s: float) -> bool:
        """Tell whether there is time for further records: while it closes, half of it."""
        return self._deadline_s is None or now_s < self._deadline_s - CLOSE_S / 2

    def is_closed(self, now_s: float) -> bool:
        """Tell whether, after the last record, there is nothing more to wait for."""
        return self._deadline_s is not None and (
            self.session.is_drained or now_s >= self._deadline_s
        )
