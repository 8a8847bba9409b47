"""The certificate of the HTTP side: checked before anything is opened."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

from gradwatch_server.errors import GradwatchError


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """Check that the two files are a certificate and its key.

    Raises:
        GradwatchError: If one of them is missing or unreadable, the key is open to all, is locked
            with a password, or does not belong to the certificate.
    """
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        msg = "http_tls_cert and http_tls_key belong together; one of them is not set"
        raise GradwatchError(msg)
    try:
        _load(certificate, key)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        msg = f"cannot use the certificate {certificate} with the key {key}: {reason}"
        raise GradwatchError(msg) from error


def _load(certificate: Path, key: Path) -> None:
    certificate.stat()
    # Not 0600 as our own: a system's keys often belong to a group of those that may use them.
    if key.stat().st_mode & stat.S_IRWXO:
        msg = f"the key is open to all; run: chmod o= {key}"
        raise ValueError(msg)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)


def _no_password() -> str:
    msg = "it asks for a password, and nobody is there to give it"
    raise ValueError(msg)
