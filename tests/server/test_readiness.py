"""The aggregator says that it serves, to whoever started it and asked to be told."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gradwatch_server.cli.commands.serve import tell_ready
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize("is_abstract", [False, True])
def test_it_is_told_at_the_address_in_the_environment(
    is_abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path, or a name that begins with an @."""
    name = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if is_abstract else name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}" if is_abstract else name)
        receiver.settimeout(PATIENCE_S)
        tell_ready()

        assert receiver.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nowhere/socket", "@nobody", "/" + "x" * 200])
def test_nobody_who_listens_is_no_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)

    tell_ready()
