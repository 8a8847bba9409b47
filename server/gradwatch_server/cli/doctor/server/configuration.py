"""Checks of the settings: whether they are valid, and whom they let in."""

from __future__ import annotations

from gradwatch_server.api.tls import check_tls
from gradwatch_server.cli.doctor.finding import Finding, error, ok, skipped, warning
from gradwatch_server.cli.doctor.server.subject import ServerSide
from gradwatch_server.errors import GradwatchError
from gradwatch_server.keys import read_keys
from gradwatch_server.preparation import prepare
from gradwatch_server.settings import exposure_warnings
from gradwatch_wire.keyfile import read_private


def look_at_settings(subject: ServerSide) -> Finding:
    """Read the settings as `serve` does."""
    try:
        settings = subject.settings
    except GradwatchError as fault:
        return error(str(fault), "correct it; docs/commands.md lists the settings")
    return ok(f"http {settings.http}, ingest {settings.ingest}, data {settings.data.absolute()}")


def look_at_exposure(subject: ServerSide) -> Finding:
    """Ask who gets in from other machines."""
    found = exposure_warnings(subject.settings)
    if not found:
        return ok("nobody gets in unchecked from other machines")
    advice = "make keys with 'gradwatch keys', give --keys-dir, and see docs/security.md"
    return warning("; ".join(found), advice)


def look_at_keys(subject: ServerSide) -> Finding:
    """Read the keys directory as `serve` does, and the keys of clients that are left in it."""
    directory = subject.settings.keys_dir
    if directory is None:
        return skipped("no keys_dir is set: who reaches the ports gets in")
    try:
        keys = read_keys(directory)
    except GradwatchError as fault:
        what, _, advice = str(fault).partition("; ")
        return error(what, advice)
    found = []
    for path in sorted(directory.glob("*.key")):
        try:
            read_private(path)
        except ValueError as fault:
            found.append(str(fault))
    if found:
        return warning("; ".join(found), "give each such file to its client alone: chmod 600")
    return ok(f"{directory}: {len(keys.clients)} clients, two tokens")


def look_at_certificate(subject: ServerSide) -> Finding:
    """Check certificate and key of the HTTP side."""
    certificate, key = subject.settings.http_tls_cert, subject.settings.http_tls_key
    if certificate is None and key is None:
        return skipped("no http_tls_cert is set: HTTP without TLS")
    try:
        check_tls(certificate, key)
    except GradwatchError as fault:
        return error(str(fault), "correct http_tls_cert and http_tls_key")
    return ok(f"{certificate}, and its key")


def look_at_preparation(subject: ServerSide) -> Finding:
    """Make of the settings what `serve` does first; nothing is opened or sent."""
    settings = subject.settings
    try:
        prepare(settings)
    except GradwatchError as fault:
        advice = "correct it; gradwatch serve would not start, with the variables of this shell"
        return error(str(fault), advice)
    targets = ", ".join(settings.notify.root) or "none"
    return ok(f"targets of notifications: {targets}")
