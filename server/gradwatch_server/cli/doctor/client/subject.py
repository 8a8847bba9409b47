"""What the checks of a machine that trains look at: the endpoint, its key, what answers there."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gradwatch_server.cli.credentials import credentials
from gradwatch_server.cli.doctor.client.exchange import Exchange, exchange
from gradwatch_server.cli.doctor.http_probe import Answer, ask
from gradwatch_server.cli.replay import find_key
from gradwatch_server.errors import GradwatchError
from gradwatch_wire.keyfile import ClientKey
from gradwatch_wire.names import HTTP_PORT
from gradwatch_wire.session.endpoint import find_endpoint
from gradwatch_wire.session.peer import Peer, Speaks, look_at

WEB_S: Final = 2.0
"""How long the endpoint may take to answer HTTP: it is not its job."""

_MAY_BE_HTTP: Final = frozenset({Speaks.HTTP, Speaks.SILENCE, Speaks.OTHER})
"""With TLS an HTTP server says nothing to one who does not begin with it, or an alarm."""


class ClientSide:
    """Worked out when it is first asked for.

    Args:
        endpoint: Where records go, None for `GRADWATCH_ENDPOINT` or the default.
        url: The HTTP address, None for `GRADWATCH_URL`, or the endpoint's host and the usual port.
        keys: The key file, None for `GRADWATCH_KEYS`.
    """

    def __init__(
        self, endpoint: str | None = None, url: str | None = None, keys: Path | None = None
    ) -> None:
        self._endpoint = endpoint
        self._url = url or os.environ.get("GRADWATCH_URL") or None
        self._keys = keys

    @cached_property
    def endpoint(self) -> str:
        """Where records go; raises as `attach` does."""
        return find_endpoint(self._endpoint)

    @property
    def host(self) -> str | None:
        """The host in the endpoint, None of a Unix socket."""
        scheme, _, address = self.endpoint.partition("://")
        if scheme.lower() == "ipc":
            return None
        # Without the address to connect from, which ZeroMQ takes before a semicolon.
        return address.rpartition(";")[2].rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port in the endpoint."""
        return int(self.endpoint.rpartition(":")[2])

    @property
    def is_url_given(self) -> bool:
        """Whether somebody said where HTTP is answered; else it is a guess."""
        return self._url is not None

    @property
    def url(self) -> str:
        """Where HTTP is answered."""
        if self._url is not None:
            return self._url
        host = self.host or "127.0.0.1"
        return f"http://{f'[{host}]' if ':' in host else host}:{HTTP_PORT}"

    @property
    def url_host(self) -> str:
        """The host of that, empty if it has none."""
        try:
            return urlsplit(self.url).hostname or ""
        except ValueError:  # of brackets that do not close
            return ""

    @property
    def key_file(self) -> str:
        """The key file, empty without one."""
        return str(self._keys or os.environ.get("GRADWATCH_KEYS", ""))

    @cached_property
    def key(self) -> ClientKey | None:
        """The key, None without one."""
        return find_key(self._keys)

    @cached_property
    def peer(self) -> Peer:
        """What listens at the endpoint."""
        return look_at(self.endpoint)

    @cached_property
    def aggregator_at_endpoint(self) -> Answer | None:
        """What an aggregator says that answers HTTP where records are to go; None if none does."""
        if self.host is None or self.peer.speaks not in _MAY_BE_HTTP:
            return None
        scheme = "http" if self.peer.speaks is Speaks.HTTP else "https"
        place = f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
        # It is asked who it is, and told nothing: whose certificate it has does not matter.
        trusted = ssl._create_unverified_context()  # noqa: S323
        try:
            answer = ask(f"{scheme}://{place}", "/healthz", trusted=trusted, timeout_s=WEB_S)
        except GradwatchError:
            return None
        return answer if answer.is_aggregator else None

    @cached_property
    def exchange(self) -> Exchange:
        """What came of speaking with it."""
        return exchange(self.endpoint, self.key)

    @cached_property
    def health(self) -> Answer:
        """What `/healthz` answers.

        Raises:
            GradwatchError: If nothing that speaks HTTP answers.
        """
        return self.ask("/healthz")

    def ask(self, path: str) -> Answer:
        """Ask over HTTP, with the token of `GRADWATCH_TOKEN`."""
        settings: Mapping[str, Any] = credentials()
        return ask(self.url, path, settings.get("headers"), settings.get("verify"))
