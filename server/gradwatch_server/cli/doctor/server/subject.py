"""What the checks of the aggregator's machine look at: its settings, its data, who answers."""

from __future__ import annotations

import ssl
from functools import cached_property
from pathlib import Path
from typing import Any

from gradwatch_server.addresses import is_wildcard, split_address
from gradwatch_server.cli.doctor.http_probe import Answer, ask
from gradwatch_server.errors import GradwatchError
from gradwatch_server.settings import Settings, load_settings
from gradwatch_server.storage.inspection import Inspection
from gradwatch_server.stores import inspect_store


class ServerSide:
    """Worked out when it is first asked for.

    Args:
        config: The settings file, None for the usual one.
        given: Settings of the command line, None where not given.
    """

    def __init__(self, config: Path | None = None, **given: Any) -> None:
        self._config = config
        self._given = given

    @cached_property
    def settings(self) -> Settings:
        """What `gradwatch serve` would be set to, with the same options."""
        return load_settings(self._config, **self._given)

    @cached_property
    def store(self) -> Inspection:
        """The data directory."""
        return inspect_store(self.settings.data)

    @cached_property
    def running(self) -> Answer | None:
        """What an aggregator says that answers at our HTTP address; None if none does."""
        if split_address(self.settings.http)[1] == 0:
            return None
        try:
            answer = self.ask("/healthz")
        except GradwatchError:
            return None
        return answer if answer.is_aggregator else None

    @cached_property
    def is_own(self) -> bool | None:
        """Whether the aggregator that answers is that of the data directory; None if unknown."""
        if self.running is None:
            return None
        try:
            store = self.store
        except OSError:  # of another user
            return None
        if store.holder is None:
            return False
        return None if store.boot is None else self.running.fields.get("boot") == store.boot

    def ask(self, path: str) -> Answer:
        """Ask at our HTTP address, whosever it is.

        Raises:
            GradwatchError: If nothing that speaks HTTP answers.
        """
        host, port = split_address(self.settings.http)
        host = "127.0.0.1" if is_wildcard(host) else host
        is_plain = self.settings.http_tls_cert is None
        url = f"{'http' if is_plain else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
        # On this machine, and nothing secret is sent: the certificate has a check of its own.
        trusted = None if is_plain else ssl._create_unverified_context()  # noqa: S323
        return ask(url, path, trusted=trusted)
