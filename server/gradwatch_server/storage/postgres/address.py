"""Where a ledger is: a URL of PostgreSQL, and a name for it that has nothing secret."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from gradwatch_server.storage.store import StorageError, StorageFault

_SCHEMES: Final = ("postgresql", "postgres")

_DEFAULTS: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    # Whose machine vanished is noticed within seconds, not when TCP gives up.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms
    "application_name": "gradwatch",
}
"""Where the URL says nothing."""


class Address:
    """A URL of PostgreSQL, read.

    Args:
        url: `postgresql://user:password@host:port/database`, also with several hosts.

    Raises:
        StorageError: If it is none. The URL is not repeated: a password may be anywhere in it.
    """

    def __init__(self, url: str) -> None:
        try:
            given = conninfo_to_dict(url) if _is_clear(url) else None
        except psycopg.Error:
            given = None
        if given is None:
            msg = (
                "the ledger's address is not a URL like postgresql://user:password@host:5432/name "
                "(what was given is not shown: there may be a password in it); characters such as "
                "@ / : ? # in a user's name or password are to be percent-encoded"
            )
            raise StorageError(msg, StorageFault.UNUSABLE)
        self.parameters: dict[str, Any] = _DEFAULTS | given | {"client_encoding": "utf8"}

    @property
    def name(self) -> str:
        """What errors call it: hosts and database."""
        hosts = str(self.parameters.get("host") or self.parameters.get("hostaddr") or "")
        ports = str(self.parameters.get("port") or "").split(",")
        pairs = [
            f"{host}:{port}" if (port := ports[min(place, len(ports) - 1)]) else host
            for place, host in enumerate(hosts.split(","))
        ]
        return f"postgresql://{','.join(pairs)}/{self.parameters.get('dbname') or ''}"

    def hide(self, text: str) -> str:
        """Return a text in one line, without what is secret."""
        for key in ("password", "sslpassword"):
            if secret := self.parameters.get(key):
                text = text.replace(str(secret), "***")
        return " ".join(text.split())


def _is_clear(url: str) -> bool:
    """Tell whether no part of the password can be taken for another part of the URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    outside = parts.path + parts.query + parts.fragment
    return (
        parts.scheme in _SCHEMES
        and parts.netloc.count("@") <= 1
        and parts.netloc.rpartition("@")[0].count(":") <= 1
        and "@" not in outside
    )
