"""`gradwatch doctor` where all is fine and where it is not, by real ports, disks and keys."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from gradwatch_server.cli.app import app
from gradwatch_server.cli.doctor.client import CLIENT_CHECKS
from gradwatch_server.cli.doctor.packages import complaints
from gradwatch_server.cli.doctor.report import Check, Finding, Level, error, ok, run_checks
from gradwatch_server.cli.doctor.server import SERVER_CHECKS
from gradwatch_server.keys import add_client, make_keys
from gradwatch_server.storage.sqlite.store import DATABASE_NAME
from gradwatch_wire import __version__
from tests.support.aggregator import Aggregator
from tests.support.command import run_command

ANY_PORTS = ("--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0")


@pytest.fixture(autouse=True)
def _nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("GRADWATCH_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


class Report:
    """What was found, by the names of the checks."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.document = json.loads(text)
        self.status = self.document["status"]

    def level(self, name: str) -> str:
        """Return what a check found."""
        return str(self._check(name)["finding"])

    def says(self, name: str) -> tuple[str, str]:
        """Return what a check found in words, and what to do."""
        return self._check(name)["detail"], self._check(name)["advice"]

    def _check(self, name: str) -> dict[str, Any]:
        """Return what a check found: one of the training's side, if both sides have it."""
        found: dict[str, Any] = {check["name"]: check for check in self.document["checks"]}
        return dict(found[name])


def doctor(*arguments: object) -> Report:
    """Run it in this process."""
    result = CliRunner().invoke(app, ["doctor", "--json", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    assert result.exit_code in (0, 1), result.output
    return Report(result.exit_code, result.stdout)


def of_server(*arguments: object) -> Report:
    """Look at this machine, at ports that are free."""
    return doctor(*ANY_PORTS, "--data", "data", *arguments)


# The machine of an aggregator


def test_an_empty_folder_is_fine(tmp_path: Path) -> None:
    found = of_server()

    assert (found.code, found.status) == (0, "ok")
    assert found.document["version"] == __version__
    assert list(tmp_path.iterdir()) == []
    assert "is not there yet" in found.says("directory")[0]
    assert f"gradwatch {__version__}, Python 3." in found.says("packages")[0]


def test_each_check_is_told_once_with_stable_keys() -> None:
    found = doctor(*ANY_PORTS, "--endpoint", "ipc:///nowhere").document

    assert set(found) == {"version", "status", "checks"}
    names = [("server", check.name) for check in SERVER_CHECKS]
    names += [("client", check.name) for check in CLIENT_CHECKS]
    assert [(check["side"], check["name"]) for check in found["checks"]] == names
    keys = {"side", "name", "looks_at", "finding", "detail", "advice"}
    assert all(set(check) == keys for check in found["checks"])
    bad = [check for check in found["checks"] if check["finding"] in {"warning", "error"}]
    assert all(check["advice"] for check in bad)


def test_settings_that_serve_refuses_are_an_error_and_nothing_else_is_made_up() -> None:
    Path("gradwatch.toml").write_text("htp = 'x'\n")

    found = of_server()

    assert (found.code, found.level("settings")) == (1, "error")
    assert "setting 'htp' is not known" in found.says("settings")[0]
    assert found.says("disk") == ("needs what 'directory' looks at", "")
    assert found.level("packages") == "ok"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '[notify.oncall]\nurl_env = "NO_SUCH_VARIABLE"\n',
            "setting 'notify.oncall.url_env': the environment variable NO_SUCH_VARIABLE is not set",
        ),
        ('http_tls_cert = "cert.pem"\nhttp_tls_key = "key.pem"\n', "cert.pem"),
    ],
)
def test_what_serve_would_not_start_with_is_an_error(text: str, says: str) -> None:
    Path("gradwatch.toml").write_text(text)
    found = of_server()

    assert (found.code, found.level("settings"), found.level("disk")) == (1, "error", "ok")
    assert says in found.says("settings")[0]
    refused = CliRunner().invoke(app, ["serve", *ANY_PORTS, "--data", "data"])
    assert refused.exit_code == 1
    assert found.says("settings")[0] in refused.stderr
    assert not Path("data").exists()


@pytest.mark.slow
def test_a_port_that_something_else_has_is_an_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        ports = [each.getsockname()[1] for each in (one, two)]
        http, ingest = f"127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}"
        found = doctor("--http", http, "--ingest", ingest)

    assert found.code == 1
    assert found.says("http-address")[0] == f"{http} is taken by something that is no aggregator"
    assert "--http" in found.says("http-address")[1]
    assert found.level("ingest-address") == "error"
    assert found.says("ingest-address")[0].startswith(f"{ingest} is taken: there is something that")


@pytest.mark.parametrize(
    ("option", "address", "name"),
    [
        ("--http", "no-such-host.invalid:8420", "http-address"),
        ("--ingest", "ipc:///no/such/folder/socket", "ingest-address"),
    ],
)
def test_an_address_that_is_not_of_this_machine_is_an_error(
    option: str, address: str, name: str
) -> None:
    found = of_server("--insecure", option, address)

    assert found.level(name) == "error"
    assert address in found.says(name)[0]
    assert option in found.says(name)[1]


def test_a_free_unix_socket_is_fine(tmp_path: Path) -> None:
    assert of_server("--ingest", f"ipc://{tmp_path}/socket").level("ingest-address") == "ok"


@pytest.mark.slow
def test_the_aggregator_that_runs_with_this_data_is_no_error(
    service: Aggregator, serve: Callable[..., Aggregator], tmp_path: Path
) -> None:
    same = ("--http", service.url.partition("//")[2], "--ingest", service.ingest)
    found = doctor(*same, "--data", service.directory)

    assert (found.code, found.status) == (0, "ok")
    assert f"(pid {service.process.pid})" in found.says("database")[0]
    for name in ("http-address", "ingest-address"):
        assert "is taken by the aggregator that has this data" in found.says(name)[0]
    assert found.says("aggregator")[0] == f"version {__version__} runs, and takes records in"

    other = doctor(*same, "--data", "other")
    for name in ("http-address", "ingest-address"):
        assert other.level(name) == "error"
        assert "by an aggregator that does not have /" in other.says(name)[0]

    second = serve("--data", str(tmp_path / "second"))
    crossed = doctor(*same, "--data", tmp_path / "second")
    assert f"(pid {second.process.pid})" in crossed.says("database")[0]
    for name in ("http-address", "ingest-address"):
        assert crossed.level(name) == "error"
        assert f"that does not have {tmp_path / 'second'}" in crossed.says(name)[0]
    assert crossed.level("aggregator") == "skipped"


@pytest.mark.slow
def test_a_killed_aggregator_leaves_data_that_is_fine(serve: Callable[..., Aggregator]) -> None:
    """The next one goes on."""
    killed = serve()
    killed.stop(9)

    found = of_server("--data", killed.directory)

    assert found.code == 0
    assert found.says("database")[0].endswith("no aggregator has it")
    assert found.level("aggregator") == "skipped"


def test_whom_a_directory_lets_in_is_told() -> None:
    Path("data").mkdir(0o755)
    found = of_server()

    assert (found.code, found.status) == (0, "warning")
    assert found.says("directory") == ("data: mode 0755 lets others in", "run: chmod 700 data")


def test_a_directory_that_is_none_or_cannot_be_made_is_an_error() -> None:
    Path("data").write_text("")
    found = of_server()
    assert found.says("directory")[0] == "data is no directory"
    assert found.level("disk") == "skipped"


@contextlib.contextmanager
def tmpfs(place: Path, *options: str) -> Iterator[Path]:
    """Mount a file system of its own."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", place],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("only who may mount can make a small disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.slow
def test_a_disk_that_is_full_is_an_error_and_one_that_is_too_small_a_warning(
    tmp_path: Path,
) -> None:
    with tmpfs(tmp_path / "small", "size=1g") as small:
        (small / "data").mkdir(0o700)
        found = of_server("--data", small / "data")
        assert (found.code, found.level("disk")) == (0, "warning")
        assert found.says("disk")[0].startswith("1.0 GiB free, the data may grow by 13.0 GiB")

        with (small / "big").open("wb") as big:
            os.posix_fallocate(big.fileno(), 0, 900 << 20)
        found = of_server("--data", small / "data")
        assert (found.code, found.level("disk")) == (1, "error")
        assert "as good as full" in found.says("disk")[0]
        assert "--data" in found.says("disk")[1]


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "fixed", "ro") as fixed:
        for data in (fixed, fixed / "data"):
            found = of_server("--data", data)
            assert found.says("directory")[0].startswith(f"{fixed} (owner 0) cannot be written by")
    assert found.code == 1


def test_a_database_of_a_newer_version_and_one_of_others_are_errors() -> None:
    Path("data").mkdir(0o700)
    path = Path("data", DATABASE_NAME)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA auto_vacuum=INCREMENTAL")
        other.execute("CREATE TABLE x (y)")
        other.execute("PRAGMA user_version=999")
    before = path.read_bytes()
    found = of_server()
    assert found.level("database") == "error"
    assert found.says("database")[0].startswith("schema version 999, this gradwatch reads")
    assert path.read_bytes() == before

    path.write_text("a letter to a friend")
    assert "does not begin as one of gradwatch" in of_server().says("database")[0]


def test_data_that_was_written_later_than_now_is_a_warning() -> None:
    """The clock was ahead, or is behind."""
    Path("data").mkdir(0o700)
    path = Path("data", DATABASE_NAME)
    sqlite3.connect(path).close()
    os.utime(path, (time.time() + 3600, time.time() + 3600))

    found = of_server()

    assert found.level("clock") == "warning"
    assert "the data was last written at" in found.says("clock")[0]


@pytest.mark.slow
def test_keys_that_are_open_to_others_are_told(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert of_server("--keys-dir", keys).level("keys") == "error"
    make_keys(keys)
    add_client(keys, "trainer", ["*"])
    assert of_server("--keys-dir", keys).says("keys")[0] == f"{keys}: 2 clients, two tokens"

    (keys / "trainer.key").chmod(0o644)
    found = of_server("--keys-dir", keys)
    assert (found.code, found.level("keys")) == (0, "warning")
    assert "trainer.key: mode 0644" in found.says("keys")[0]

    (keys / "server.key").chmod(0o640)
    found = of_server("--keys-dir", keys)
    assert (found.code, found.level("keys")) == (1, "error")
    assert "server.key: mode 0640 is open to others" in found.says("keys")[0]
    assert found.says("keys")[1].startswith("run: chmod 600")


def test_who_gets_in_from_other_machines_is_told() -> None:
    found = of_server("--http", "0.0.0.0:0", "--insecure")

    assert (found.code, found.level("keys")) == (0, "warning")
    assert "whoever reaches http at 0.0.0.0:0 gets in" in found.says("keys")[0]


# The way from a training


class Other(BaseHTTPRequestHandler):
    """Something that answers like an aggregator of another version, with another time."""

    def do_GET(self) -> None:
        now = (datetime.now(UTC) + timedelta(seconds=90)).isoformat().replace("+00:00", "Z")
        answer = {"version": "99.1.0", "cursor": 0, "now": now}
        status = 200
        if self.path == "/readyz":
            answer, status = {"detail": "the disk is full"}, 503
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """The URL of a server that is no aggregator, or a strange one."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def deaf() -> Iterator[int]:
    """The port of something that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.slow
def test_the_way_to_an_aggregator_that_runs_is_fine_and_nothing_is_left_there(
    service: Aggregator,
) -> None:
    before = service.json("/runs"), service.errors
    found = doctor("--endpoint", service.ingest, "--url", service.url)

    assert (found.code, found.status) == (0, "ok")
    assert "the aggregator answers; a round trip takes" in found.says("protocol")[0]
    assert found.says("version")[0] == f"{__version__} there, {__version__} here"
    assert re.match(r"the aggregator's clock is [01]\.\d s", found.says("clock")[0])
    for name in ("torch", "endpoint", "peer", "http"):
        assert found.level(name) == "ok", name
    assert (service.json("/runs"), service.errors) == before
    assert "gradwatch_refused_total{" not in re.sub(
        r"gradwatch_refused_total\{[^}]*\} 0\.0", "", service.get("/metrics").text
    )


def test_an_endpoint_at_which_nobody_listens_is_an_error_and_the_rest_is_skipped() -> None:
    """HTTP was guessed, so that it is missing is a warning."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        found = doctor("--endpoint", endpoint)

    assert found.code == 1
    assert found.says("peer")[0] == f"nothing at {endpoint} takes a connection"
    assert "gradwatch serve" in found.says("peer")[1]
    levels = {found.level(name) for name in ("key", "protocol", "version", "clock")}
    assert levels == {"skipped"}
    assert found.level("http") == "warning"


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("http://127.0.0.1:8420", "is not like tcp://127.0.0.1:5555"),
        ("tcp://no-such-host.invalid:5555", "no-such-host.invalid has no address"),
        ("tcp://a:5555,tcp://b:5555", "endpoint: one at a time, got 2: tcp://a:5555, tcp://b:5555"),
    ],
)
def test_an_endpoint_that_cannot_be_one_is_an_error(endpoint: str, says: str) -> None:
    found = doctor("--endpoint", endpoint)

    assert (found.code, found.level("endpoint"), found.level("peer")) == (1, "error", "skipped")
    assert says in found.says("endpoint")[0]


@pytest.mark.slow
def test_at_the_http_port_of_an_aggregator_the_one_for_records_is_named(
    service: Aggregator,
) -> None:
    """The two are easily taken for one another."""
    found = doctor("--endpoint", service.url.replace("http:", "tcp:"))

    assert found.level("peer") == "error"
    assert found.says("peer")[1].endswith(service.ingest)


@pytest.mark.slow
def test_something_deaf_is_given_up(deaf: int) -> None:
    found = doctor("--endpoint", f"tcp://127.0.0.1:{deaf}", "--url", f"http://127.0.0.1:{deaf}")

    assert "takes connections and does not answer" in found.says("peer")[0]
    assert found.level("http") == "error"
    assert "no answer within 3 s" in found.says("http")[0]


@pytest.mark.slow
def test_keys_that_are_let_in_and_such_that_are_not(
    tmp_path: Path, serve: Callable[..., Aggregator], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, others = tmp_path / "keys", tmp_path / "others"
    make_keys(keys)
    make_keys(others)
    service = serve("--keys-dir", str(keys))
    where = ("--endpoint", service.ingest, "--url", service.url)

    found = doctor(*where)
    assert "asks for a key, and this process has none" in found.says("key")[0]
    assert found.level("http") == "warning"

    late = add_client(keys, "late", ["*"])
    for unknown in (others / "client.key", late):
        found = doctor(*where, "--keys", unknown)
        assert found.says("protocol")[0] == f"the key in {unknown} is not let in"
        assert found.code == 1

    monkeypatch.setenv("GRADWATCH_KEYS", str(keys / "client.key"))
    text = (keys / "tokens.toml").read_text()
    monkeypatch.setenv("GRADWATCH_TOKEN", re.findall(r'"(.*)"', text)[0])
    found = doctor(*where)
    assert (found.code, found.status) == (0, "ok")
    assert "encrypted" in found.says("protocol")[0]

    (keys / "client.key").chmod(0o644)
    found = doctor(*where)
    assert "mode 0644 is open to others" in found.says("key")[0]
    assert found.says("key")[1].startswith("run: chmod 600")
    assert found.level("protocol") == "skipped"


@pytest.mark.slow
def test_a_key_for_an_aggregator_that_asks_for_none_is_an_error(
    service: Aggregator, tmp_path: Path
) -> None:
    make_keys(tmp_path / "keys")
    found = doctor("--endpoint", service.ingest, "--keys", tmp_path / "keys" / "client.key")

    assert "the aggregator asks for none" in found.says("key")[0]
    assert "--keys-dir" in found.says("key")[1]


def test_another_version_another_time_and_a_full_disk_are_told(other: str) -> None:
    found = doctor("--endpoint", "ipc:///nowhere", "--url", other)

    assert found.level("version") == "warning"
    assert found.says("version")[0].startswith("the aggregator is 99.1.0")
    assert found.says("http")[0] == "it takes nothing in: the disk is full"
    assert found.level("clock") == "warning"
    assert re.search(r"clock is (89|90|91)\.\d s ahead", found.says("clock")[0])


# Whatever it is given


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
ADDRESSES = st.one_of(
    TEXTS,
    st.builds(
        "tcp://{}:{}".format, st.sampled_from(["", "[", "a b", "::1", "*", "127.0.0.1;x"]), TEXTS
    ),
    st.builds("http://{}".format, TEXTS),
    st.builds("ipc://{}".format, TEXTS),
)


@pytest.mark.slow
@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(endpoint="tcp://[:5", url="A://[", keys="\n", data="a\nb", http="[::1:8420")
@example(endpoint="tcp://x:1", url="http://\x0b.a", keys="", data="", http="")
@given(endpoint=ADDRESSES, url=ADDRESSES, keys=TEXTS, data=TEXTS, http=ADDRESSES)
def test_whatever_it_is_given_it_finds_something_and_no_check_fails(
    endpoint: str, url: str, keys: str, data: str, http: str
) -> None:
    """Exit 0 or 1, JSON, and never a traceback."""
    options = zip(
        ("--endpoint", "--url", "--keys", "--data", "--http"),
        (endpoint, url, keys, data, http),
        strict=True,
    )
    found = doctor("--ingest", "tcp://127.0.0.1:0", *(f"{name}={value}" for name, value in options))

    assert not any("the check itself" in each["detail"] for each in found.document["checks"])


def test_a_package_of_a_version_that_does_not_fit_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(complaints("server")) == []

    metadata = tmp_path / "gradwatch-0.1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        "Metadata-Version: 2.4\nName: gradwatch\nVersion: 0.1.0\n"
        "Requires-Dist: pytest<1; extra == 'server'\n"
        "Requires-Dist: no-such-package>=3\n"
        "Requires-Dist: no-such-package>=4; extra == 'client'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    told = [f"pytest {pytest.__version__} is not <1", "no-such-package>=3 is not installed"]
    assert list(complaints("server")) == told
    found = doctor(*ANY_PORTS, "--endpoint", "ipc:///nowhere")
    assert found.level("packages") == "error"
    assert found.level("torch") == "warning"
    assert "no-such-package>=4 is not installed" in found.says("torch")[0]


def test_a_check_that_fails_or_hangs_does_not_end_the_others() -> None:
    def hang(_subject: None) -> Finding:
        threading.Event().wait()
        return ok("")

    def fail(_subject: None) -> Finding:
        raise RuntimeError("on purpose")

    checks = [
        Check("hangs", "", hang),
        Check("fails", "", fail),
        Check("needs", "", lambda _: ok("looked"), needs=("fails",)),
        Check("free", "", lambda _: error("looked", "nothing")),
    ]
    found = {check.name: each for check, each in run_checks(checks, None, deadline_s=0.2)}

    assert "within 0.2 s" in found["hangs"].detail
    assert "RuntimeError: on purpose" in found["fails"].detail
    assert found["needs"].level is Level.SKIPPED
    assert found["free"].detail == "looked"


@pytest.mark.slow
def test_it_is_a_command_of_its_own_that_people_can_read(tmp_path: Path) -> None:
    result = run_command(tmp_path, "doctor", *ANY_PORTS, "--data", str(tmp_path / "data"))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("nothing is wrong (")

    result = run_command(tmp_path, "doctor", "--nothing")
    assert result.returncode == 2
