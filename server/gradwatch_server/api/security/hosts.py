"""Under which names the API may be called, and which pages may change something.

A page of another site can make its own name resolve to us and then read what we answer to its
visitor's browser (DNS rebinding), but the browser sends that name in `Host`. It can also make the
browser send a change to us (cross-site request forgery), but then the browser sends its `Origin`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from gradwatch_server.addresses import is_ip_address, is_loopback
from gradwatch_server.api.problems import Problem

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110)."""


class Hosts:
    """The names under which the API may be called: loopback, its own address, and those allowed.

    Bound to all addresses it may be called by any IP address: only names can be made to resolve
    to another machine.
    """

    def __init__(self, bound: str, more: Iterable[str] = ()) -> None:
        self._more = {name.lower() for name in more}
        self._names = {bound.lower(), *self._more}
        self._any_address = bound in ("0.0.0.0", "::")  # noqa: S104 - a comparison

    def allows(self, authority: str) -> bool:
        """Tell whether `host` or `host:port` is one of ours."""
        try:
            host = urlsplit(f"//{authority}").hostname or ""
        except ValueError:
            return False
        host = host.removesuffix(".")
        if host in self._names or is_loopback(host):
            return True
        return self._any_address and is_ip_address(host)

    def is_named(self, authority: str) -> bool:
        """Tell whether an authority without a port is a name given beside our own."""
        return authority.lower() in self._more


def check_host(hosts: Hosts, headers: Headers) -> Problem | None:
    """Refuse a request that does not name one of *hosts*, once."""
    given = headers.getlist("host")
    if len(given) == 1 and hosts.allows(given[0]):
        return None
    shown = f"{given[0][:80]!a}" if given else "none"
    return Problem(421, f"this is no host of ours: {shown}; if it is, name it in http_hosts")


def check_origin(hosts: Hosts, method: str, headers: Headers) -> Problem | None:
    """Refuse a change that the page of another origin makes its visitor's browser ask for.

    Another port of this machine is another origin, too. A proxy may end TLS, so that the scheme is
    not looked at, and may send a `Host` of its own: its name has to be one of `http_hosts` then.
    """
    origin = headers.get("origin")
    if method in SAFE_METHODS or origin is None:
        return None
    authority = origin.partition("://")[2]
    if authority.lower() == headers.get("host", "").lower() or hosts.is_named(authority):
        return None
    return Problem(403, f"pages of {origin[:80]!a} may change nothing here")
