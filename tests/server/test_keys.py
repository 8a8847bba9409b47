"""The keys directory: made for its owner alone, read strictly, and never shown."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

import pytest
import zmq

from gradwatch_server.errors import GradwatchError
from gradwatch_server.keys import Client, add_client, make_keys, read_keys
from gradwatch_wire.keyfile import MAX_FILE_BYTES, read_client_key

FILES = ["server.key", "clients.toml", "tokens.toml", "client.key"]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


def refusal(directory: Path) -> str:
    with pytest.raises(GradwatchError) as caught:
        read_keys(directory)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = make_keys(tmp_path / "keys")
    finally:
        os.umask(before)

    assert sorted(path.name for path in files) == sorted(FILES)
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == sorted(FILES)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_what_is_made_fits_together(made: Path) -> None:
    """The client's file names the server and a key that the server knows, for all runs."""
    keys = read_keys(made)
    key = read_client_key(made / "client.key")

    assert key.server == keys.public
    assert keys.clients == {key.public: Client("client", ("*",))}
    assert zmq.curve_public(key.secret.encode()).decode() == key.public
    assert zmq.curve_public(keys.secret.encode()).decode() == keys.public
    assert keys.tokens.read != keys.tokens.write
    assert min(len(keys.tokens.read), len(keys.tokens.write)) >= 43  # 32 random bytes


def test_no_two_directories_are_alike(tmp_path: Path) -> None:
    """Keys and tokens are new each time."""
    for name in ("a", "b"):
        make_keys(tmp_path / name)
    a, b = (read_keys(tmp_path / name) for name in ("a", "b"))

    values = [each for keys in (a, b) for each in (keys.public, keys.secret)]
    values += [each for keys in (a, b) for each in (keys.tokens.read, keys.tokens.write)]
    assert len(set(values)) == 8


def test_keys_are_never_overwritten(made: Path) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    with pytest.raises(GradwatchError, match=r"has keys already; add a client with --client NAME"):
        make_keys(made)

    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


def test_a_client_is_bound_to_its_runs(made: Path) -> None:
    path = add_client(made, "team-a", ["gpt-*", "probe"])
    client = read_keys(made).clients[read_client_key(path).public]

    assert path == made / "team-a.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((made / "clients.toml").stat().st_mode) == 0o600
    assert client == Client("team-a", ("gpt-*", "probe"))
    names = ("gpt-1", "probe", "probe2", "GPT-1", "xgpt-1", "")
    assert [client.may_write(name) for name in names] == [True, True, False, False, False, False]
    assert len(read_keys(made).clients) == 2


@pytest.mark.parametrize(
    ("name", "run", "says"),
    [
        ("client", "*", "client 'client' exists already"),
        ("server", "*", "client 'server' exists already"),
        ("../x", "*", r"client name '../x' is not "),
        ("a b", "*", r"client name 'a b' is not "),
        ("", "*", r"client name '' is not "),
        ("a", "", r"run pattern '' is not a run name"),
        ("a", 'x"]\nruns = ["*', r"run pattern 'x\"\]\\nruns"),
    ],
)
def test_a_client_that_cannot_be_is_refused(made: Path, name: str, run: str, says: str) -> None:
    before = sorted(made.iterdir())
    with pytest.raises(GradwatchError, match=says):
        add_client(made, name, [run])

    assert sorted(made.iterdir()) == before
    assert len(read_keys(made).clients) == 1


@pytest.mark.parametrize("file", FILES[:3])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602, 0o644, 0o700, 0o660])
def test_a_file_that_is_open_to_others_is_refused(made: Path, file: str, mode: int) -> None:
    (made / file).chmod(mode)

    assert f"{file}: mode {mode:04o} is open to others; run: chmod 600 {made}" in refusal(made)


def test_a_directory_that_others_may_change_is_refused(made: Path) -> None:
    made.chmod(0o770)

    assert f"others may change {made}; run: chmod 700 {made}" in refusal(made)


@pytest.mark.parametrize("file", FILES[:3])
def test_a_missing_file_is_named(made: Path, file: str) -> None:
    (made / file).unlink()

    message = refusal(made)
    assert message.startswith(f"key file {made / file}: No such file or directory; ")
    assert "gradwatch keys --dir" in message


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


MALFORMED = {
    "no TOML": ("server.key", "public", "public public", "not TOML"),
    "no key": ("server.key", "secret =", "other =", "'secret' is missing"),
    "a short key": ("server.key", 'secret = "', 'secret = "x', "'secret' is no CURVE key"),
    "a token too short": ("tokens.toml", 'read = "', 'read = ""#', "'read' is no token of 32"),
    "no token": ("tokens.toml", "write", "other", "'write' is no token of 32"),
    "no client's key": ("clients.toml", "public", "other", "'public' is missing"),
    "no runs": ("clients.toml", '["*"]', "[]", "client 'client' needs a public key and a list"),
    "a run that is none": ("clients.toml", '["*"]', "[5]", "client 'client' needs a public key"),
    "runs that are no list": ("clients.toml", '["*"]', '"*"', "client 'client' needs a public"),
    "a name that is none": ("clients.toml", '"client"', '"a b"', "client 'a b' needs a public"),
}


@pytest.mark.parametrize(("file", "old", "new", "says"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_file_is_named(made: Path, file: str, old: str, new: str, says: str) -> None:
    secrets = [read_keys(made).secret, read_keys(made).tokens.read, read_keys(made).tokens.write]
    replaced(made / file, old, new)
    message = refusal(made)

    assert message.startswith(f"key file {made / file}: ")
    assert says in message
    assert not any(secret in message for secret in secrets)


def test_a_pair_that_does_not_fit_is_refused(made: Path) -> None:
    """Clients would wait for an answer that never comes."""
    other = zmq.curve_keypair()[0].decode()
    replaced(made / "server.key", read_keys(made).public, other)

    assert "'public' is not the public key of 'secret'" in refusal(made)


def test_one_key_for_two_clients_is_refused(made: Path) -> None:
    entry = (made / "clients.toml").read_text()
    (made / "clients.toml").write_text(entry + entry.replace('"client"', '"other"'))

    assert "clients 'client' and 'other' have one key" in refusal(made)


def test_one_token_for_both_is_refused(made: Path) -> None:
    """Readers could write."""
    tokens = tomllib.loads((made / "tokens.toml").read_text())
    replaced(made / "tokens.toml", tokens["write"], tokens["read"])

    assert "'read' and 'write' are the same token" in refusal(made)


def test_what_is_no_plain_file_is_refused_at_once(made: Path) -> None:
    """A pipe would be waited for, a large file read for long."""
    (made / "tokens.toml").unlink()
    os.mkfifo(made / "tokens.toml", 0o600)
    assert "tokens.toml: not a plain file" in refusal(made)

    (made / "tokens.toml").unlink()
    (made / "tokens.toml").write_bytes(bytes(MAX_FILE_BYTES + 1))
    (made / "tokens.toml").chmod(0o600)
    assert "tokens.toml: larger than 1048576 bytes" in refusal(made)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(GradwatchError, match=r"cannot write keys into .*/file/x: Not a dir.*--dir"):
        make_keys(tmp_path / "file" / "x")


def test_secrets_are_not_in_any_repr(made: Path) -> None:
    """Reprs end up in logs and tracebacks."""
    keys, key = read_keys(made), read_client_key(made / "client.key")
    shown = repr(keys) + repr(keys.tokens) + repr(key)

    for secret in (keys.secret, keys.tokens.read, keys.tokens.write, key.secret):
        assert secret not in shown
