"""The key file: refused early when it is wrong; with a right one the aggregator lets us in."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from torch import nn

import gradwatch
from gradwatch._transport.keys import find_key
from gradwatch_server.ingest.socket import Ingest
from gradwatch_server.keys import make_keys, read_keys
from gradwatch_wire import Hello
from gradwatch_wire.keyfile import ClientKey, read_client_key
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADWATCH_KEYS", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def file(folder: Path) -> Path:
    """A client's key."""
    return folder / "client.key"


class Port(threading.Thread):
    """The real ingest socket; it only notes which runs say HELLO."""

    def __init__(self, ingest: Ingest) -> None:
        super().__init__(daemon=True)
        self.ingest = ingest
        self.runs: list[str] = []
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopping.is_set():
            for message in self.ingest.receive(20):
                if isinstance(message.envelope.record, Hello):
                    self.runs.append(message.envelope.record.run)

    def stop(self) -> None:
        self._stopping.set()
        self.join(10)
        self.ingest.close()


@pytest.fixture
def open_port() -> Iterator[Callable[..., Port]]:
    """Open a port, with keys or without: `open_port(folder, endpoint=...)`."""
    made: list[Port] = []

    def begin(folder: Path | None, endpoint: str = "tcp://127.0.0.1:0") -> Port:
        made.append(Port(Ingest(endpoint, read_keys(folder) if folder else None)))
        return made[-1]

    yield begin
    for port in made:
        if port.is_alive():
            port.stop()


@pytest.fixture
def attach() -> Iterator[Callable[..., gradwatch.Watch]]:
    made: list[gradwatch.Watch] = []

    def begin(**settings: Any) -> gradwatch.Watch:
        watch = gradwatch.attach(nn.Linear(2, 2), run="test", **settings)
        assert isinstance(watch, gradwatch.Watch)
        made.append(watch)
        return watch

    yield begin
    for watch in made:
        watch.close()


def refusal(path: Path) -> str:
    with pytest.raises(ValueError, match=r"^keys: ") as caught:
        gradwatch.attach(nn.Linear(2, 2), run="test", keys=path)
    message = str(caught.value)
    assert "\n" not in message
    return message


# The file


def test_without_a_file_there_is_no_key() -> None:
    assert find_key(None) is None
    assert find_key("") is None


def test_the_argument_is_before_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = read_client_key(file)
    monkeypatch.setenv("GRADWATCH_KEYS", "/nowhere")
    assert find_key(file) == find_key(str(file)) == key
    monkeypatch.setenv("GRADWATCH_KEYS", str(file))
    assert find_key(None) == key


def test_what_is_no_path_is_a_type_error() -> None:
    """A key itself, say."""
    with pytest.raises(TypeError, match=r"^keys: a path, got bytes$"):
        gradwatch.attach(nn.Linear(2, 2), run="test", keys=b"secret")  # type: ignore[arg-type]  # that is the point


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.key"
    assert refusal(missing) == f"keys: key file {missing}: No such file or directory"
    assert refusal(tmp_path) == f"keys: key file {tmp_path}: Is a directory"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o700])
def test_a_file_that_is_open_to_others_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)

    assert refusal(file) == (
        f"keys: key file {file}: mode {mode:04o} is open to others; run: chmod 600 {file}"
    )


def test_a_narrower_file_will_do(file: Path) -> None:
    file.chmod(0o400)
    assert find_key(file) is not None


MALFORMED = {
    "empty": "",
    "no TOML": "secret secret secret",
    "not UTF-8": "\udcff",
    "a part missing": 'server = "{server}"\npublic = "{public}"\n',
    "a number": 'server = 5\npublic = "{public}"\nsecret = "{secret}"\n',
    "too short": 'server = "x"\npublic = "{public}"\nsecret = "{secret}"\n',
    "not Z85": 'server = "{server}"\npublic = "{public}"\nsecret = "' + "~" * 40 + '"\n',
    "too large for its bytes": 'server = "{server}"\npublic = "{public}"\nsecret = "'
    + "#" * 40
    + '"\n',
    "another's secret": 'server = "{server}"\npublic = "{public}"\nsecret = "{other}"\n',
    "the server's file": 'public = "{public}"\nsecret = "{secret}"\n',
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_file_is_refused_and_not_shown(file: Path, text: str) -> None:
    key = read_client_key(file)
    other = zmq.curve_keypair()[1].decode()
    for name, value in (("server", key.server), ("public", key.public), ("secret", key.secret)):
        text = text.replace(f"{{{name}}}", value)
    file.write_text(text.replace("{other}", other), encoding="utf-8", errors="surrogateescape")
    message = refusal(file)

    assert str(file) in message
    assert key.secret not in message
    assert other not in message


# The connection


@pytest.mark.slow
def test_with_a_key_the_aggregator_lets_us_in(
    open_port: Callable[..., Port], attach: Callable[..., gradwatch.Watch], folder: Path, file: Path
) -> None:
    port = open_port(folder)
    attach(endpoint=port.ingest.endpoint, keys=file)

    wait_until(lambda: port.runs, "a HELLO")


@pytest.mark.slow
def test_the_key_is_shown_at_each_of_several_endpoints(
    open_port: Callable[..., Port], attach: Callable[..., gradwatch.Watch], folder: Path, file: Path
) -> None:
    plain, first, second = open_port(None), open_port(folder), open_port(folder)
    watch = attach(endpoint=[port.ingest.endpoint for port in (plain, first, second)], keys=file)
    wait_until(lambda: first.runs, "a HELLO")
    first.stop()
    wait_until(lambda: second.runs, "a HELLO at the next one")

    assert watch.endpoint == second.ingest.endpoint
    assert plain.runs == []


def stranger(key: ClientKey) -> ClientKey:
    public, secret = zmq.curve_keypair()
    return ClientKey(server=key.server, public=public.decode(), secret=secret.decode())


def another_servers(key: ClientKey) -> ClientKey:
    server = zmq.curve_keypair()[0].decode()
    return ClientKey(server=server, public=key.public, secret=key.secret)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["plain", "stranger", "another_servers"])
def test_who_is_not_let_in_is_told_once_and_trains_on(
    open_port: Callable[..., Port],
    attach: Callable[..., gradwatch.Watch],
    folder: Path,
    file: Path,
    who: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """ZeroMQ itself says nothing."""
    port = open_port(folder)
    if who != "plain":
        key = {"stranger": stranger, "another_servers": another_servers}[who](read_client_key(file))
        file.write_text(key.to_toml())
    watch = attach(endpoint=port.ingest.endpoint, keys=None if who == "plain" else file)
    wait_until(lambda: "no answer: " in caplog.text, "the log says so")
    watch.close()

    assert not watch._sender.is_alive()
    assert port.runs == []
    (record,) = [r for r in caplog.records if "no answer: " in r.getMessage()]
    assert record.levelno == logging.WARNING
    assert f"{port.ingest.endpoint}: the aggregator asks for another key" in record.getMessage()
    has = "this process has none" if who == "plain" else "this process's is not known there"
    assert has in record.getMessage()


@pytest.mark.slow
@pytest.mark.parametrize("has_key", [True, False])
def test_who_was_not_let_in_is_let_in_after_a_restart(
    open_port: Callable[..., Port],
    attach: Callable[..., gradwatch.Watch],
    folder: Path,
    file: Path,
    caplog: Any,
    has_key: bool,
) -> None:
    """ZeroMQ would never try again. The new aggregator knows the key, or asks for none."""
    known = (folder / "clients.toml").read_text()
    (folder / "clients.toml").write_text("")
    port = open_port(folder)
    attach(endpoint=port.ingest.endpoint, **({"keys": file} if has_key else {}))
    wait_until(lambda: "no answer: " in caplog.text, "the log says so")
    port.stop()
    (folder / "clients.toml").write_text(known)
    port = open_port(folder if has_key else None, port.ingest.endpoint)

    wait_until(lambda: port.runs, "a HELLO")
