"""Settings: command line before environment before file, and errors that name the key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.errors import GradwatchError
from gradwatch_server.settings import Settings, exposure_warnings, load_settings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no setting in the environment."""
    for name in os.environ:
        if name.startswith("GRADWATCH_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(config: Path | None = None, **given: Any) -> str:
    with pytest.raises(GradwatchError) as caught:
        load_settings(config, **given)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_those_of_the_design() -> None:
    """Loopback, and a directory beside where it was started."""
    settings = load_settings(None)

    assert settings.http == "127.0.0.1:8420"
    assert settings.ingest == "tcp://127.0.0.1:5555"
    assert settings.data == Path("gradwatch-data")
    assert (settings.window_steps, settings.session_timeout_s) == (512, 30.0)
    assert not settings.insecure


def test_the_command_line_is_before_the_environment_is_before_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gradwatch.toml").write_text(
        'http = "127.0.0.1:1"\ningest = "tcp://127.0.0.1:1"\ndata = "from-file"\n'
    )
    monkeypatch.setenv("GRADWATCH_HTTP", "127.0.0.1:2")
    monkeypatch.setenv("GRADWATCH_INGEST", "tcp://127.0.0.1:2")

    settings = load_settings(None, http="127.0.0.1:3", ingest=None, data=None)

    assert settings.http == "127.0.0.1:3"
    assert settings.ingest == "tcp://127.0.0.1:2"
    assert settings.data == Path("from-file")


def test_another_file_can_be_named(folder: Path) -> None:
    (folder / "gradwatch.toml").write_text("window_steps = 100\n")
    (folder / "other.toml").write_text("session_timeout_s = 5\n")

    settings = load_settings(folder / "other.toml")

    assert (settings.window_steps, settings.session_timeout_s) == (512, 5.0)


def test_the_environment_names_a_file_unless_the_command_line_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(["gradwatch.toml", "named.toml", "given.toml"]):
        (folder / name).write_text(f"window_steps = {100 + number}\n")
    monkeypatch.setenv("GRADWATCH_CONFIG", "")
    assert load_settings(None).window_steps == 100
    monkeypatch.setenv("GRADWATCH_CONFIG", "named.toml")
    assert load_settings(None).window_steps == 101
    assert load_settings(Path("given.toml")).window_steps == 102

    (folder / "named.toml").unlink()
    assert load_settings(Path("given.toml")).window_steps == 102
    assert refusal() == "no config file named.toml, which GRADWATCH_CONFIG names"


def test_rules_of_file_and_environment_are_put_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gradwatch.toml").write_text("[rules.exploding]\nlimit = 500\nclear_steps = 9\n")
    monkeypatch.setenv("GRADWATCH_RULES", '{"exploding": {"clear_steps": 8}}')

    settings = load_settings(None)

    rules = settings.rules.model_dump()
    assert (rules["exploding"]["limit"], rules["exploding"]["clear_steps"]) == (500.0, 8)
    assert rules["vanishing"]["limit"] == 1e-7


def test_budgets_of_file_and_environment_are_put_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gradwatch.toml").write_text("[budgets]\nruns = 5\nrun_bytes = 20_000_000\n")
    monkeypatch.setenv("GRADWATCH_BUDGETS__RUNS", "6")

    budgets = load_settings(None).budgets

    assert (budgets.runs, budgets.run_bytes) == (6, 20_000_000)
    assert budgets.total_bytes == 1 << 30


def test_variables_of_the_client_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUN", "ENDPOINT", "DISABLED", "URL"):
        monkeypatch.setenv(f"GRADWATCH_{name}", "x")

    assert load_settings(None).http == "127.0.0.1:8420"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http = ", "config file gradwatch.toml: Invalid value"),
        ("a = 'x", "config file gradwatch.toml: "),
        ("htttp = '127.0.0.1:1'", "setting 'htttp' is not known"),
        ("http = 5", "setting 'http': should be a text in quotes, such as \"one\", got 5"),
        ("http = '127.0.0.1'", "setting 'http': not of the form host:port"),
        ("window_steps = 7", "setting 'window_steps': Input should be greater than or equal to 8"),
        ("window_steps = 1e9", "setting 'window_steps': "),
        ("session_timeout_s = nan", "setting 'session_timeout_s': "),
        ("insecure = 'perhaps'", "setting 'insecure': should be true or false"),
        ("rules = 1", "setting 'rules': "),
        ("[rules.explodng]", "setting 'rules.explodng' is not known; the rules are nonfinite, exp"),
        ("[rules.exploding]\nlimt = 1", "setting 'rules.exploding.limt' is not known"),
        ("[rules.exploding]\nlimit = -1", "setting 'rules.exploding.limit': Input should be gr"),
        ("[rules.vanishing]\nlimit = 2\nclear = 1", "setting 'rules.vanishing': clear (1) must"),
        ("[rules.nonfinite]\nseverity = 'x'", "setting 'rules.nonfinite.severity': "),
        ("[budgets]\nrunz = 5", "setting 'budgets.runz' is not known; there are runs, runs_per_c"),
        (
            "[budgets]\nruns = 0",
            "setting 'budgets.runs': Input should be greater than or equal to 1",
        ),
        ("[budgets]\nruns = 1.5", "setting 'budgets.runs': should be a whole number"),
        ("[budgets]\nhttp_wait_s = nan", "setting 'budgets.http_wait_s': "),
    ],
)
def test_a_bad_file_is_refused_by_the_name_of_the_key(folder: Path, text: str, says: str) -> None:
    (folder / "gradwatch.toml").write_text(text)

    assert refusal().startswith(says)


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    """Missing, a directory, or not text."""
    assert refusal(Path("none.toml")) == "no config file none.toml"
    assert refusal(folder).startswith("no config file ")
    (folder / "gradwatch.toml").write_bytes(b"a = '\xff'")
    assert refusal().startswith("config file gradwatch.toml: 'utf-8' codec")


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWATCH_WINDOW_STEPS", "many")
    assert refusal().startswith("setting 'window_steps': should be a whole number")
    monkeypatch.setenv("GRADWATCH_RULES", "{")
    assert refusal().startswith("an environment variable GRADWATCH_*: ")
    assert '"rules"' in refusal()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("http", "0.0.0.0:8420"),
        ("http", "[::]:8420"),
        ("http", "192.168.1.5:8420"),
        ("http", "example.org:80"),
        ("ingest", "tcp://0.0.0.0:5555"),
        ("ingest", "tcp://*:5555"),
        ("ingest", "tcp://[::]:5555"),
        ("ingest", "tcp://eth0:5555"),
    ],
)
def test_an_address_beyond_loopback_is_refused_unless_it_is_wanted(key: str, value: str) -> None:
    message = refusal(None, **{key: value})
    assert message.startswith(f"{key} address {value} is reachable from other machines")
    assert "--insecure" in message

    assert getattr(load_settings(None, **{key: value}, insecure=True), key) == value


@pytest.mark.parametrize(
    "ingest", ["tcp://127.0.0.1:0", "tcp://[::1]:5555", "tcp://localhost:*", "ipc:///tmp/x"]
)
def test_local_addresses_are_allowed(ingest: str) -> None:
    """Loopback in its spellings, and a socket file."""
    assert load_settings(None, ingest=ingest).ingest == ingest


@pytest.mark.parametrize("ingest", ["tcp://[x", "5555", "tcp://127.0.0.1:²", "http://x:1"])
def test_a_malformed_endpoint_is_refused(ingest: str) -> None:
    assert "is not like tcp://127.0.0.1:5555" in refusal(ingest=ingest)


def test_settings_cannot_be_changed() -> None:
    settings = load_settings(None)
    with pytest.raises(ValueError, match="frozen"):
        settings.http = "0.0.0.0:1"  # type: ignore[misc]  # that is the point


def test_a_far_address_needs_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The refusal says how to make them; with a directory of them it is none."""
    monkeypatch.chdir(tmp_path)
    for far in ({"http": "0.0.0.0:8420"}, {"ingest": "tcp://0.0.0.0:5555"}):
        with pytest.raises(Exception, match=r"'gradwatch keys' and give --keys-dir gradwatch-keys"):
            load_settings(None, **far)
        assert load_settings(None, keys_dir=Path("keys"), **far).keys_dir == Path("keys")


def test_an_operator_is_warned_of_what_is_open() -> None:
    near = Settings()
    far = Settings(http="0.0.0.0:8420", ingest="tcp://0.0.0.0:5555", insecure=True)
    keys = far.model_copy(update={"keys_dir": Path("keys")})
    tls = keys.model_copy(update={"http_tls_cert": Path("c"), "http_tls_key": Path("k")})

    assert exposure_warnings(near) == []
    assert [line.split(":")[0] for line in exposure_warnings(far)] == ["insecure", "insecure"]
    (warning,) = exposure_warnings(keys)
    assert warning.startswith("HTTP tokens travel in the clear;")
    assert exposure_warnings(tls) == []
