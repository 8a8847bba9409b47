"""The keys directory: who may send, who may read, and the aggregator's own key.

    server.key      CURVE key pair of the aggregator
    clients.toml    the clients it knows: name, public key, the runs that each may write
    tokens.toml     the tokens of the HTTP API
    NAME.key        what a client called NAME needs; copied to where it trains

`gradwatch keys` makes them, the aggregator reads them once, at its start.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import zmq

from gradwatch_server.errors import GradwatchError
from gradwatch_wire.health import RUN_NAME_RULE, is_run_name
from gradwatch_wire.keyfile import PRIVATE, ClientKey, curve_key, read_private

DEFAULT_KEYS: Final = Path("gradwatch-keys")
DEFAULT_CLIENT: Final = "client"
ALL_RUNS: Final = ("*",)

SERVER: Final = "server.key"
CLIENTS: Final = "clients.toml"
TOKENS: Final = "tokens.toml"

RUN_PATTERN: Final = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,128}")
TOKEN: Final = re.compile(r"[!-~]{32,256}")
"""Form of a token: it fits into a header, and a random one is too long to be guessed."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client that is known by its key.

    Args:
        runs: Patterns (`fnmatch` style) of the runs that it may write.
    """

    name: str
    runs: tuple[str, ...]

    def may_write(self, run: str) -> bool:
        return any(fnmatchcase(run, pattern) for pattern in self.runs)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The bearer tokens of the HTTP API."""

    read: str
    write: str

    def __repr__(self) -> str:
        """Show neither: reprs end up in logs."""
        return "Tokens(...)"


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys that the aggregator reads of the directory.

    Args:
        clients: Public key in Z85 to the client that has it.
    """

    public: str
    secret: str
    clients: Mapping[str, Client]
    tokens: Tokens

    def __repr__(self) -> str:
        """Leave out the secrets: reprs end up in logs."""
        return f"Keys(public={self.public!r}, {len(self.clients)} clients)"


def make_keys(directory: Path) -> list[Path]:
    """Make the keys of an aggregator, of one client for all runs, and the tokens.

    Raises:
        GradwatchError: If there are some already, or they cannot be written.
    """
    if (directory / SERVER).exists():
        msg = (
            f"{directory} has keys already; add a client with --client NAME, "
            "or give another directory with --dir"
        )
        raise GradwatchError(msg)
    tokens = {"read": secrets.token_urlsafe(32), "write": secrets.token_urlsafe(32)}
    public, secret = _key_pair()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(directory / TOKENS, _toml(tokens))
        _write(directory / CLIENTS, "")
        _write(directory / SERVER, _toml({"public": public, "secret": secret}))
    except OSError as error:
        raise _unwritable(directory, error) from error
    made = add_client(directory, DEFAULT_CLIENT, ALL_RUNS)
    return [directory / SERVER, directory / CLIENTS, directory / TOKENS, made]


def add_client(directory: Path, name: str, runs: Sequence[str]) -> Path:
    """Make the key of a client and let it in; return its file.

    Raises:
        GradwatchError: If the name or a pattern is not allowed, the name is taken, or the
            directory is not one that `make_keys` made.
    """
    _check_client(name, runs)
    keys = read_keys(directory)
    path = directory / f"{name}.key"
    if path.name == SERVER or path.exists() or name in {c.name for c in keys.clients.values()}:
        msg = f"client {name!r} exists already in {directory}; give another --client NAME"
        raise GradwatchError(msg)
    public, secret = _key_pair()
    section = f"[{json.dumps(name)}]\n" + _toml({"public": public, "runs": list(runs)})
    try:
        known = (directory / CLIENTS).read_text("utf-8")
        _write(path, ClientKey(server=keys.public, public=public, secret=secret).to_toml())
        # Last, and at once: a client that is let in has its file.
        _replace(directory / CLIENTS, known + section)
    except OSError as error:
        raise _unwritable(directory, error) from error
    return path


def read_keys(directory: Path) -> Keys:
    """Read the keys directory.

    Raises:
        GradwatchError: If a file is missing, open to others, or malformed.
    """
    try:
        _check_directory(directory)
        pair = read_private(directory / SERVER)
        public, secret = (curve_key(pair, name, directory / SERVER) for name in _PAIR)
        check_pair(public, secret, directory / SERVER)
        tokens = _tokens(read_private(directory / TOKENS), directory / TOKENS)
        clients = _clients(read_private(directory / CLIENTS), directory / CLIENTS)
    except ValueError as error:
        msg = f"{error}; make a directory of keys with: gradwatch keys --dir DIR"
        raise GradwatchError(msg) from error
    return Keys(public, secret, clients, tokens)


_PAIR: Final = ("public", "secret")


def _check_client(name: str, runs: Sequence[str]) -> None:
    if not is_run_name(name):
        msg = f"client name {name[:80]!a} is not {RUN_NAME_RULE}"
        raise GradwatchError(msg)
    for pattern in runs:
        if not RUN_PATTERN.fullmatch(pattern):
            msg = (
                f"run pattern {pattern[:80]!a} is not a run name with *, ? and [...] in it, such "
                "as gpt-*"
            )
            raise GradwatchError(msg)


def _check_directory(directory: Path) -> None:
    try:
        mode = directory.stat().st_mode
        # A Secret of Kubernetes is mounted with mode 1777, and read-only.
        is_fixed = os.statvfs(directory).f_flag & os.ST_RDONLY
    except OSError as error:
        msg = f"keys directory {directory}: {error.strerror}"
        raise ValueError(msg) from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_fixed:
        msg = f"others may change {directory}; run: chmod 700 {directory}"
        raise ValueError(msg)


def check_pair(public: str, secret: str, path: Path) -> None:
    """Check that two keys belong together.

    Raises:
        ValueError: If they do not.
    """
    try:
        fits = zmq.curve_public(secret.encode()) == public.encode()
    except zmq.ZMQError:  # five characters of Z85 can be more than four bytes hold
        fits = False
    if not fits:
        msg = f"key file {path}: 'public' is not the public key of 'secret'"
        raise ValueError(msg)


def _tokens(values: Mapping[str, Any], path: Path) -> Tokens:
    for name in ("read", "write"):
        value = values.get(name)
        if not isinstance(value, str) or not TOKEN.fullmatch(value):
            msg = f"key file {path}: {name!r} is no token of 32 to 256 visible ASCII characters"
            raise ValueError(msg)
    if values["read"] == values["write"]:
        msg = f"key file {path}: 'read' and 'write' are the same token"
        raise ValueError(msg)
    return Tokens(values["read"], values["write"])


def _clients(values: Mapping[str, Any], path: Path) -> dict[str, Client]:
    clients: dict[str, Client] = {}
    for name, entry in values.items():
        runs = entry.get("runs") if isinstance(entry, dict) else None
        patterns = isinstance(runs, list) and all(
            isinstance(run, str) and RUN_PATTERN.fullmatch(run) for run in runs
        )
        if not is_run_name(name) or not runs or not patterns:
            msg = f"key file {path}: client {name[:80]!a} needs a public key and a list of runs"
            raise ValueError(msg)
        public = curve_key(entry, "public", path)
        if public in clients:
            msg = f"key file {path}: clients {clients[public].name!a} and {name!a} have one key"
            raise ValueError(msg)
        clients[public] = Client(name, tuple(runs))
    return clients


def _key_pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _toml(values: Mapping[str, str | list[str]]) -> str:
    """Spell texts and lists of texts; for those that are allowed here JSON's form is TOML's."""
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    assert tomllib.loads(text) == values  # noqa: S101 - ours, or the patterns above are wrong
    return text


def _write(path: Path, text: str) -> None:
    """Write a new file that nobody else may ever have had open."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w") as file:
        file.write(text)


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    _write(new, text)
    new.replace(path)


def _unwritable(directory: Path, error: OSError) -> GradwatchError:
    return GradwatchError(f"cannot write keys into {directory}: {error.strerror}; see --dir")
