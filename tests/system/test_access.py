"""Access, with real processes: who gets in, who does not, and what the others notice of it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tomllib
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
import zmq

from gradwatch_server.budgets import Budgets
from gradwatch_server.ingest.inbox import BURST
from gradwatch_server.keys import add_client, make_keys
from gradwatch_wire import Bye, Refuse
from gradwatch_wire.keyfile import ClientKey, read_client_key
from tests.support.aggregator import GRADWATCH, Aggregator
from tests.support.certificate import make_certificate
from tests.support.command import Command, run_command
from tests.support.job import Train
from tests.support.records import stats_of
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

NAN = float("nan")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def tokens(folder: Path) -> dict[str, str]:
    return tomllib.loads((folder / "tokens.toml").read_text())


@pytest.fixture
def locked(aggregator: Aggregator, environ: dict[str, str], folder: Path) -> Aggregator:
    """An aggregator that asks everyone."""
    environ["GRADWATCH_KEYS_DIR"] = str(folder)
    aggregator.start()
    return aggregator


@pytest.fixture
def ask(tmp_path: Path) -> Command:
    """Run a command to its end: `ask("runs", TOKEN="...")`."""
    return partial(run_command, tmp_path)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# Training


def test_a_training_job_with_its_key_is_seen_and_one_without_trains_unseen(
    locked: Aggregator,
    train: Train,
    folder: Path,
    tokens: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = locked.url
    monkeypatch.setenv("GRADWATCH_KEYS", str(folder / "client.key"))
    seen = train(1, "--run", "seen", "--steps", "40", "--pause-s", "0.05")
    monkeypatch.delenv("GRADWATCH_KEYS")
    unseen = train(1, "--run", "unseen", "--steps", "40", "--pause-s", "0.05")

    seen.wait()
    unseen.wait()
    report = httpx.get(f"{url}/runs/seen/health", headers=bearer(tokens["read"])).json()
    runs = httpx.get(f"{url}/runs", headers=bearer(tokens["read"])).json()
    assert report["step"] == 39
    assert [run["run"] for run in runs] == ["seen"]


def test_strangers_get_nothing_in_while_a_known_peer_goes_on(
    locked: Aggregator, folder: Path, tokens: dict[str, str]
) -> None:
    """Plain, with an unknown key, with a known key for another aggregator, and noise."""
    key = read_client_key(folder / "client.key")
    known = locked.peer(key=key, run="known").attach(["a"])
    public, secret = (text.decode() for text in zmq.curve_keypair())
    unknown = ClientKey(server=key.server, public=public, secret=secret)
    of_another_server = ClientKey(server=public, public=key.public, secret=key.secret)
    strangers = [locked.peer(key=each) for each in (None, unknown, of_another_server)]
    host, _, port = locked.ingest.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(os.urandom(10_000))
        for stranger in strangers:
            stranger.send_hello()
        for step in range(20):
            known.stats(step, [1.0])
        wait_until(lambda: "unknown key" in locked.errors, "the unknown key is told")
        known.stats(20, [1.0])
        known.acked()
        assert all(stranger.is_silent() for stranger in strangers)

    runs = httpx.get(f"{locked.url}/runs", headers=bearer(tokens["read"])).json()
    assert [run["run"] for run in runs] == ["known"]
    assert locked.stop() == 0
    assert "Traceback" not in locked.errors
    assert locked.errors.count("unknown key") == 1


def test_a_key_writes_its_own_runs_and_no_other(
    locked: Aggregator, environ: dict[str, str], folder: Path, tokens: dict[str, str]
) -> None:
    add_client(folder, "team-a", ["a-*"])
    locked.stop()
    locked.start()
    team, owner = (read_client_key(folder / f"{name}.key") for name in ("team-a", "client"))
    locked.peer(key=team, run="a-1").greet()
    stranger = locked.peer(key=team, run="b-1")
    reason = "the key of client 'team-a' may not write run 'b-1'"
    assert stranger.say(stranger.greeting) == Refuse(reason=reason)

    other = locked.peer(key=owner, run="b-1").attach(["a"])
    other.stats(0, [1.0])
    other.acked()
    for again in (False, True):
        if again:
            locked.stop()
            locked.start()
        thief = locked.peer(key=team, run="a-1")
        thief.session = other.session
        assert isinstance(thief.say(thief.greeting), Refuse)
        thief.send_as(3, 1, stats_of(1, [NAN]))
        assert isinstance(thief.receive(), Refuse)

    report = locked.json("/runs/b-1/health", headers=bearer(tokens["read"]))
    assert report["step"] == 0
    assert report["records"]["stored"] == 2
    assert report["records"]["lost"] == 0


def test_a_client_opens_only_so_many_runs_and_the_others_as_many_as_they_like(
    aggregator: Aggregator, environ: dict[str, str], folder: Path
) -> None:
    add_client(folder, "team-a", ["a-*"])
    add_client(folder, "team-c", ["c-*"])
    environ |= {"GRADWATCH_KEYS_DIR": str(folder), "GRADWATCH_BUDGETS__RUNS_PER_CLIENT": "2"}
    aggregator.start()
    team, owner = (read_client_key(folder / f"{name}.key") for name in ("team-a", "client"))
    trains = [aggregator.peer(key=team, run=f"a-{n}").attach(["w"]) for n in (1, 2)]
    for peer in trains:
        peer.stats(0, [1.0])
        peer.acked()
    reason = "client 'team-a' has 2 runs that live, as many as budget runs_per_client = 2 allows"
    for again in (False, True):
        if again:
            aggregator.stop()
            aggregator.start()
            for peer in trains:
                peer.greet()
        third = aggregator.peer(key=team, run="a-3")
        assert third.say(third.greeting) == Refuse(reason=reason)
        aggregator.peer(key=owner, run=f"b-{again}").attach(["w"])

    others = read_client_key(folder / "team-c.key")
    train_too = [aggregator.peer(key=others, run=f"c-{n}").attach(["w"]) for n in (1, 2)]
    for peer in train_too:
        peer.stats(0, [1.0])
        peer.acked()
    for run in ("c-3", "c-4"):
        refused = aggregator.peer(key=others, run=run)
        assert isinstance(refused.say(refused.greeting), Refuse)
    assert aggregator.errors.count("refused to client 'team-c' (runs_per_client, told once)") == 1
    trains[0].send(Bye())
    trains[0].acked()
    aggregator.peer(key=team, run="a-3").attach(["w"])


def test_a_refused_training_job_trains_on(
    locked: Aggregator, train: Train, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = add_client(folder, "team-a", ["a-*"])
    locked.stop()
    locked.start()
    monkeypatch.setenv("GRADWATCH_KEYS", str(path))
    job = train(1, "--run", "b-1", "--steps", "20", "--pause-s", "0.02")

    output = "".join(str(part) for part in job.wait())
    assert output.count("the aggregator says") == 1
    assert output.count("may not write run") == 2
    assert "the aggregator refused" in output


def test_a_peer_that_sends_nonsense_is_silenced_and_the_others_are_served(
    aggregator: Aggregator,
) -> None:
    """The good one's records are stored while the flood lasts, and nothing is lost."""
    aggregator.start()
    bad = aggregator.peer(run="bad")
    good = aggregator.peer(run="good").attach(["a"])
    for step in range(50):
        for _ in range(BURST):
            bad.send_raw(b"\x01junk")
        good.stats(step, [1.0])
    good.acked()
    wait_until(lambda: aggregator.health("good")["step"] == 49, "all steps are there")
    report = aggregator.health("good")

    assert (report["records"]["stored"], report["records"]["lost"]) == (51, 0)
    assert [run["run"] for run in aggregator.get("/runs").json()] == ["good"]
    aggregator.stop()
    assert aggregator.errors.count("throttled, told once") == 1


# The commands


def test_from_keys_to_a_guarded_service_with_what_the_commands_print(
    ask: Command, aggregator: Aggregator, environ: dict[str, str], tmp_path: Path
) -> None:
    """`gradwatch keys`, `serve`, and the commands that ask, with a token and without."""
    made = ask("keys", "--dir", "k")
    assert made.returncode == 0
    assert "gradwatch serve --keys-dir k" in made.stdout
    for name in ("server.key", "clients.toml", "tokens.toml", "client.key"):
        assert f"k/{name}\n" in made.stdout
    tokens = tomllib.loads((tmp_path / "k" / "tokens.toml").read_text())
    assert not any(token in made.stdout + made.stderr for token in tokens.values())
    again = ask("keys", "--dir", "k")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    added = ask("keys", "--dir", "k", "--client", "team-a", "--run", "a-*")
    assert (added.returncode, added.stdout) == (0, "k/team-a.key\n")
    assert ask("keys", "--dir", "k", "--run", "a-*").returncode == 1

    environ["GRADWATCH_KEYS_DIR"] = str(tmp_path / "k")
    aggregator.start()
    url = aggregator.url
    for command in (["runs"], ["tail", "x"]):
        refused = ask(*command, "--url", url)
        assert refused.returncode == 1
        assert re.fullmatch(r"gradwatch: this needs a token: .*GRADWATCH_TOKEN\n", refused.stderr)
    assert ask("runs", "--url", url, GRADWATCH_TOKEN=tokens["read"]).stdout == "no runs yet\n"
    assert ask("runs", "--url", url, GRADWATCH_TOKEN="short\n").stderr == (
        "gradwatch: GRADWATCH_TOKEN is no token of 32 to 256 visible ASCII characters\n"
    )


def test_beyond_this_machine_it_starts_with_keys_or_at_ones_own_risk(
    ask: Command, folder: Path, tmp_path: Path
) -> None:
    """Refused with the command that makes keys; told what is open."""
    ports = ("--http", "0.0.0.0:0", "--ingest", "tcp://0.0.0.0:0", "--data", "data")
    refused = ask("serve", *ports)
    assert refused.returncode == 1
    assert "make keys with 'gradwatch keys' and give --keys-dir" in refused.stderr
    wrong = ask("serve", *ports, "--keys-dir", str(tmp_path / "none"))
    assert wrong.returncode == 1
    assert "No such file or directory; " in wrong.stderr
    assert not (tmp_path / "data").exists()

    told = started(*ports, "--insecure", cwd=tmp_path)
    assert "insecure: whoever reaches http at 0.0.0.0:0 gets in" in told
    assert "insecure: whoever reaches ingest at tcp://0.0.0.0:0 gets in" in told
    told = started(*ports, "--keys-dir", str(folder), cwd=tmp_path)
    assert "insecure" not in told
    assert "HTTP tokens travel in the clear" in told


def started(*arguments: str, cwd: Path) -> str:
    """Start an aggregator, stop it, and return what it wrote to stderr."""
    process = subprocess.Popen(
        [GRADWATCH, "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("  data"):
            break
    process.terminate()
    errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, errors
    return errors


def test_tls_is_spoken_with_a_certificate(
    aggregator: Aggregator, environ: dict[str, str], ask: Command, tmp_path: Path
) -> None:
    """The commands trust it by GRADWATCH_CA, and nothing is said in the clear."""
    environ |= make_certificate(tmp_path)
    cert = environ["GRADWATCH_HTTP_TLS_CERT"]
    aggregator.start()
    url = aggregator.url

    assert ask("runs", "--url", url, GRADWATCH_CA=cert).stdout == "no runs yet\n"
    assert "certificate verify failed" in ask("runs", "--url", url).stderr
    with pytest.raises(httpx.TransportError):
        aggregator.get("/healthz")
    assert ask("runs", "--url", url, GRADWATCH_CA="none.pem").stderr == (
        "gradwatch: GRADWATCH_CA: cannot read certificates from none.pem: "
        "No such file or directory\n"
    )
    Path(environ["GRADWATCH_HTTP_TLS_KEY"]).chmod(0o644)
    refused = ask("serve", **environ)
    assert (refused.returncode, "the key is open to all" in refused.stderr) == (1, True)


# Streams


def test_a_browser_listens_with_a_stream_token(locked: Aggregator, tokens: dict[str, str]) -> None:
    url = locked.url
    answer = httpx.post(f"{url}/alerts/stream-token", headers=bearer(tokens["read"])).json()
    address = f"{url}/alerts/stream?token={answer['token']}"

    with httpx.stream("GET", address) as stream:
        assert stream.status_code == 200
        assert next(stream.iter_lines()).startswith(": gradwatch alerts after ")
    assert httpx.get(f"{url}/alerts/stream?token=x").status_code == 401
    locked.stop()
    assert answer["token"] not in locked.errors


def test_a_stream_too_many_takes_the_place_of_the_oldest(aggregator: Aggregator) -> None:
    """S30: who comes is let in, and everything else is answered meanwhile."""
    aggregator.start()
    url = aggregator.url
    with ExitStack() as stack, httpx.Client(timeout=PATIENCE_S) as asker:
        limits = httpx.Limits(max_connections=None)
        client = stack.enter_context(httpx.Client(timeout=PATIENCE_S, limits=limits))
        lines = []
        for _ in range(Budgets().streams_per_caller + 1):
            stream = stack.enter_context(client.stream("GET", f"{url}/alerts/stream"))
            assert stream.status_code == 200
            lines.append(stream.iter_lines())
            next(lines[-1])

        assert [line for line in lines[0] if line] == [
            ": another reader got this place; resume after the last id"
        ]
        assert asker.get(f"{url}/runs").status_code == 200


# Texts


def test_hostile_names_are_shown_inert_everywhere(aggregator: Aggregator, ask: Command) -> None:
    aggregator.start()
    url = aggregator.url
    hostile = "[bold red]x[/] \x1b]0;owned\x07\x1b[2J\r\n<script>alert(1)</script>\u202e\x9b31m"
    known = aggregator.peer(run="named").attach([hostile, "b"])
    known.steps(0, NAN, NAN, NAN)
    refused = aggregator.peer(run="\x1b[31mrun\n[bold]")
    assert isinstance(refused.say(refused.greeting), Refuse)
    wait_until(lambda: aggregator.health("named")["step"] == 2, "the steps are there")

    shown = [ask("runs", "--url", url), ask("health", "named", "--url", url)]
    shown += [ask("health", hostile, "--url", url), ask("tail", hostile, "--url", url)]
    tail = subprocess.Popen(
        [GRADWATCH, "tail", "--after", "0", "--url", url], stdout=subprocess.PIPE, text=True
    )
    assert tail.stdout is not None
    texts = [part for result in shown for part in (result.stdout, result.stderr)]
    texts.append(tail.stdout.readline())
    tail.terminate()
    tail.communicate(timeout=PATIENCE_S)
    aggregator.stop()
    texts.append(aggregator.errors)

    for text in texts:
        assert all(character.isprintable() or character == "\n" for character in text), text
    assert sum("[bold red]x[/]" in text for text in texts) >= 2
    assert r"\x1b[31mrun" in aggregator.errors
