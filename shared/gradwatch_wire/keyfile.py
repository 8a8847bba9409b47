"""Files that hold secrets: TOML that nobody but its owner may read, and the key of a client.

The aggregator's `gradwatch keys` writes them, the client reads its own. Keys are CURVE keys in Z85,
as ZeroMQ takes them.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

PRIVATE: Final = 0o600
"""The widest mode of a file with a secret in it."""

HANDED_OUT: Final = 0o640
"""The same for a file of root's that another user reads: Kubernetes and systemd let its group."""

MAX_FILE_BYTES: Final = 1 << 20

Z85_KEY: Final = re.compile(r"[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")
"""32 bytes as ZeroMQ spells them (RFC 32). It has no quote and no backslash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKey:
    """Key of a client for an aggregator that asks for one.

    Args:
        server: Public key of the aggregator, by which the client knows it.
        public: Public key of the client, which the aggregator has to know.
    """

    server: str
    public: str
    secret: str

    def __repr__(self) -> str:
        """Leave out the secret: reprs end up in logs."""
        return f"ClientKey(server={self.server!r}, public={self.public!r})"

    def to_toml(self) -> str:
        return "".join(f'{name} = "{value}"\n' for name, value in asdict(self).items())


def read_client_key(path: Path) -> ClientKey:
    """Read the key file of a client.

    Raises:
        ValueError: If it is missing, open to others, or not what `gradwatch keys` writes.
    """
    values = read_private(path)
    names = (field.name for field in fields(ClientKey))
    return ClientKey(**{name: curve_key(values, name, path) for name in names})


def curve_key(values: Mapping[str, Any], name: str, path: Path) -> str:
    """Return the CURVE key called *name* of those in a file.

    Raises:
        ValueError: If it is missing or none. The text is not shown: it may be the secret.
    """
    value = values.get(name)
    if not isinstance(value, str) or not Z85_KEY.fullmatch(value):
        what = "is missing" if value is None else "is no CURVE key of 40 Z85 characters"
        msg = f"key file {path}: {name!r} {what}; 'gradwatch keys' writes such files"
        raise ValueError(msg)
    return value


def read_private(path: Path) -> dict[str, Any]:
    """Read a TOML file that only its owner may touch.

    Raises:
        ValueError: If it is missing, no plain file, too large, open to others, or no TOML.
    """
    if "\0" in str(path):
        msg = f"key file {str(path)!r}: no path has a null character"
        raise ValueError(msg)
    try:
        # The mode is asked of what is read: a file looked at first could be another one by then.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            _check_private(os.fstat(file.fileno()), path)
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        msg = f"key file {path}: {error.strerror}"
        raise ValueError(msg) from error
    if len(text) > MAX_FILE_BYTES:
        msg = f"key file {path}: larger than {MAX_FILE_BYTES} bytes"
        raise ValueError(msg)
    try:
        return tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        # What is wrong is not shown: it may be part of the secret.
        msg = f"key file {path}: not TOML; 'gradwatch keys' writes such files"
        raise ValueError(msg) from None


def _check_private(status: os.stat_result, path: Path) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        msg = f"key file {path}: not a plain file"
        raise ValueError(msg)
    is_handed_out = status.st_uid == 0 and os.geteuid() != 0
    if mode & ~(HANDED_OUT if is_handed_out else PRIVATE) & 0o777:
        msg = f"key file {path}: mode {mode:04o} is open to others; run: chmod 600 {path}"
        raise ValueError(msg)
