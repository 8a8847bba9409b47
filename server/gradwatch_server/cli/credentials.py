"""Credentials of the commands and of the aggregator: `GRADWATCH_TOKEN`, `GRADWATCH_CA`."""

from __future__ import annotations

import os
import ssl
from typing import Any

from gradwatch_server.errors import GradwatchError


def credentials() -> dict[str, Any]:
    """Return the settings of an httpx client.

    Raises:
        GradwatchError: If `GRADWATCH_TOKEN` is no token, or `GRADWATCH_CA` no certificates.
    """
    return _token() | _trusted_certificates()


def _token() -> dict[str, Any]:
    token = os.environ.get("GRADWATCH_TOKEN", "")
    if not token:
        return {}
    from gradwatch_server.keys import TOKEN  # noqa: PLC0415 - who has no token need not import it

    if not TOKEN.fullmatch(token):  # it is not shown: it may be one with a line end after it
        msg = "GRADWATCH_TOKEN is no token of 32 to 256 visible ASCII characters"
        raise GradwatchError(msg)
    return {"headers": {"Authorization": f"Bearer {token}"}}


def _trusted_certificates() -> dict[str, Any]:
    file = os.environ.get("GRADWATCH_CA", "")
    if not file:
        return {}
    try:
        return {"verify": ssl.create_default_context(cafile=file)}
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror
        msg = f"GRADWATCH_CA: cannot read certificates from {file}: {reason}"
        raise GradwatchError(msg) from error
