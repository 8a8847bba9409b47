"""By apprise: mail, chats, webhooks and all else that it knows."""

from __future__ import annotations

import inspect
import logging
import re
import threading
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from gradwatch_server.core.alerting.wording import cut
from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError
from gradwatch_server.notify.message import Message, compose
from gradwatch_server.notify.notification import Notification
from gradwatch_server.notify.notifiers.base import MAX_REASON, TIMEOUT_S, DeliveryError, Notifier
from gradwatch_server.notify.secrets import redacted
from gradwatch_wire.health import Severity

if TYPE_CHECKING:
    from apprise import Apprise

_STATUS: Final = re.compile(r"\berror=(\d{3})\b")
"""Status of an answer in the log of apprise's plugins."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,15}://")

_UNHEARD: Final = logging.NullHandler()
"""Without any handler Python writes warnings to stderr."""

_TYPES: Final = {
    None: "success",
    Severity.INFO: "info",
    Severity.WARNING: "warning",
    Severity.CRITICAL: "failure",
}


class AppriseNotifier(Notifier):
    """One apprise URL."""

    name: ClassVar[str] = "apprise"

    def __init__(self, url: str) -> None:
        self._url = url
        with _Said():  # what it says of a URL that it refuses has parts of it
            self._sender = _sender(url)
        if self._sender is None:
            scheme = _SCHEME.match(url)
            which = f", which begins with {scheme[0]}" if scheme else ""
            msg = f"apprise does not take the URL{which}; its forms are in apprise's documentation"
            raise GradwatchError(msg)

    def send(self, notice: Notification) -> None:
        """Send a message as plain text."""
        self._send(compose(notice))

    def test(self, page_url: str | None) -> None:
        """Send a message that says it is a test."""
        where = "" if page_url is None else f"\n{page_url}/"
        body = f"This is a test: notifications of gradwatch arrive here.{where}"
        self._send(Message("gradwatch: a test", body, Severity.INFO))

    def _send(self, message: Message) -> None:
        sender: Any = self._sender
        with _Said() as said:
            try:
                is_sent = sender.notify(
                    body=message.body,
                    title=message.title,
                    notify_type=_TYPES[message.severity],
                    body_format="text",
                )
            except Exception as error:  # noqa: BLE001 - of any of a hundred plugins
                raise DeliveryError(f"{type(error).__name__}: {self._shown(str(error))}") from None
        if is_sent:
            return
        status = _STATUS.search(said.last)
        reason = self._shown(said.last) or "apprise could not send it, and does not say why"
        raise (
            DeliveryError(reason)
            if status is None
            else DeliveryError.answered(reason, int(status[1]))
        )

    def _shown(self, text: str) -> str:
        return cut(printable(redacted(text, self._url)), MAX_REASON)


def _sender(url: str) -> Apprise | None:
    """Return what sends to a URL, None if it is none of apprise's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hundred plugins are loaded, some with old modules
        try:
            import apprise  # noqa: PLC0415 - the extra
        except ModuleNotFoundError as error:
            msg = "apprise is not installed; run: pip install 'gradwatch[notify]'"
            raise GradwatchError(msg) from error
        options: dict[str, Any] = {"app_id": "gradwatch", "app_desc": "gradwatch"}
        options["async_mode"] = False  # in this thread, which has a deadline
        if "service_timeout" in inspect.signature(apprise.AppriseAsset).parameters:
            options["service_timeout"] = 0  # likewise: it would take a thread for that
        asset = apprise.AppriseAsset(**options)
        service = apprise.Apprise.instantiate(url, asset=asset)
    if service is None:
        return None
    for limit in ("socket_connect_timeout", "socket_read_timeout"):
        usual = getattr(type(service), limit)
        if getattr(service, limit) == usual:  # the URL says nothing
            setattr(service, limit, max(usual, TIMEOUT_S))
    return apprise.Apprise(service, asset=asset)


class _Said(logging.Handler):
    """Hears what apprise logs in this thread, and lets nothing of it out: URLs may be in it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the last line of this thread."""
        if record.thread == self._thread:
            self.last = record.getMessage()

    def __enter__(self) -> Self:
        logger = logging.getLogger("apprise")
        logger.propagate = False
        logger.addHandler(_UNHEARD)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("apprise").removeHandler(self)
