"""`gradwatch serve` with keys: the page's address, and who gets to see the token for it."""

from __future__ import annotations

import signal
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from gradwatch_server.keys import make_keys, read_keys
from tests.support.aggregator import Serve
from tests.support.terminal import Terminal

ANY_PORTS = ("--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.mark.slow
def test_a_person_gets_an_address_with_the_token(tmp_path: Path, keys: Path) -> None:
    arguments = ("serve", *ANY_PORTS, "--keys-dir", str(keys), "--data", "data")
    with Terminal(tmp_path, *arguments, columns=300) as terminal:
        terminal.shows("  data  ")
        (address,) = [
            line.split()[1] for line in terminal.text.splitlines() if line.startswith("  page ")
        ]
        terminal.send(signal.SIGTERM)
        assert terminal.ends() == 0

    tokens = read_keys(keys).tokens
    assert parse_qs(urlsplit(address).fragment) == {"token": [tokens.read]}
    assert tokens.write not in terminal.raw


def test_a_log_gets_no_token(serve: Serve, keys: Path) -> None:
    service = serve("--keys-dir", str(keys))
    service.stop()
    tokens = read_keys(keys).tokens

    told = f"{service.url}/ (asks for the token `read` in {keys}/tokens.toml)"
    assert service.announced["page"] == told
    for token in (tokens.read, tokens.write):
        assert token not in service.errors + str(service.announced)


def test_without_keys_there_is_nothing_to_say(serve: Serve) -> None:
    """The HTTP address is that of the page."""
    assert "page" not in serve().announced
