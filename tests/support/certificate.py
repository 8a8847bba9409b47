"""A certificate of one's own for loopback."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(directory: Path) -> dict[str, str]:
    """Write a certificate and its key; return the settings that name them."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return {"GRADWATCH_HTTP_TLS_CERT": str(cert), "GRADWATCH_HTTP_TLS_KEY": str(key)}
