"""The `gradwatch` command: `serve`, and `runs`, `health` and `tail`, which ask over HTTP."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar
from urllib.parse import quote

import httpx
import httpx_sse
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradwatch_server.cli.access import access
from gradwatch_server.cli.replay import find_key, replay_files
from gradwatch_server.core.alerting.alert import printable
from gradwatch_server.errors import GradwatchError
from gradwatch_server.keys import DEFAULT_KEYS, add_client, make_keys
from gradwatch_server.service import serve as run_service
from gradwatch_server.settings import Settings, load_settings
from gradwatch_wire import __version__
from gradwatch_wire.health import Severity, Status

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    name="gradwatch",
    help="Gradient telemetry for PyTorch: which layer on which rank went wrong at which step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

EXIT_UNHEALTHY = 3
RECONNECT_S = 1.0
UNREACHABLE = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)
"""UnicodeError: a host name that cannot be one."""
COLOURS = {
    Status.HEALTHY: "green",
    Status.ENDED: "blue",
    Status.CRITICAL: "bold red",
    Severity.WARNING: "yellow",
}

Url = Annotated[
    str,
    typer.Option("--url", envvar="GRADWATCH_URL", help="HTTP address of the aggregator."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")]
DEFAULT_URL = "http://127.0.0.1:8420"
DEFAULT_ENDPOINT = "tcp://127.0.0.1:5555"


def _setting(name: str, *flags: str) -> Any:
    """Return the option of a setting: its help and default stand in `Settings` alone."""
    field = Settings.model_fields[name]
    return typer.Option(*flags, help=field.description, show_default=str(field.default or ""))


def clear_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Print what a person can act on in one line, and exit 1."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except GradwatchError as error:
            print(f"gradwatch: {printable(str(error))}", file=sys.stderr)
            raise typer.Exit(1) from error

    return wrapped


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print the version when asked."""
    if show:
        print(f"gradwatch {__version__}")
        raise typer.Exit


@app.command()
@clear_errors
def serve(
    http: Annotated[str | None, _setting("http")] = None,
    ingest: Annotated[str | None, _setting("ingest")] = None,
    data: Annotated[Path | None, _setting("data")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings file.", show_default="gradwatch.toml if there is one"),
    ] = None,
    keys_dir: Annotated[Path | None, _setting("keys_dir")] = None,
    insecure: Annotated[bool | None, _setting("insecure", "--insecure")] = None,
) -> None:
    """Run the aggregator until it is told to stop."""
    settings = load_settings(
        config, http=http, ingest=ingest, data=data, keys_dir=keys_dir, insecure=insecure
    )
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

    def announce(http_url: str, ingest_endpoint: str) -> None:
        print(f"gradwatch {__version__}", flush=False)
        print(f"  http    {http_url}")
        print(f"  ingest  {ingest_endpoint}")
        print(f"  data    {settings.data.resolve()}", flush=True)

    run_service(settings, announce)


@app.command()
@clear_errors
def keys(
    directory: Annotated[
        Path, typer.Option("--dir", help="Where the aggregator's keys are, or are to be.")
    ] = DEFAULT_KEYS,
    client: Annotated[
        str | None, typer.Option(help="Add a client of this name to the keys that are there.")
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(help="A run, or pattern of runs, that this client may write; all without it."),
    ] = None,
) -> None:
    """Make the keys and tokens that let clients and readers in from other machines."""
    if client is None and run:
        msg = "--run is for a client; name it with --client NAME"
        raise GradwatchError(msg)
    made = make_keys(directory) if client is None else [add_client(directory, client, run or ["*"])]
    for path in made:
        print(path)
    if client is None:
        print(f"aggregator: gradwatch serve --keys-dir {directory}")
        print("training:   GRADWATCH_KEYS=FILE, a copy of client.key that only its owner can read")
        print(f"readers:    GRADWATCH_TOKEN=TOKEN, one of those in {directory / 'tokens.toml'}")


@app.command()
@clear_errors
def runs(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the runs."""
    items = _get(url, "/runs")
    if as_json:
        for item in items:
            print(json.dumps(item))
        return
    if not items:
        print("no runs yet")
        return
    table = Table("run", "status", "step", "ranks", "score", "firing", "stored", "lost", box=None)
    for item in items:
        table.add_row(
            _text(item["run"]),
            _coloured(item["status"]),
            str(item["step"]),
            f"{item['ranks']}/{item['world']}",
            _short(item["score"]),
            str(item["firing"]),
            str(item["records"]["stored"]),
            str(item["records"]["lost"]),
        )
    console.print(table)


@app.command()
@clear_errors
def health(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    fail_on: Annotated[
        Status | None,
        typer.Option(
            help="Exit 3 if the status is this one; `critical` also if such an alert fires."
        ),
    ] = None,
) -> None:
    """Say how a run is and where it went wrong."""
    report = _get(url, f"/runs/{quote(run, safe='')}/health")
    if as_json:
        print(json.dumps(report))
    else:
        _print_health(report)
    critical = any(alert["severity"] == fail_on for alert in report["alerts"]["items"])
    if fail_on is not None and (report["status"] == fail_on or critical):
        raise typer.Exit(EXIT_UNHEALTHY)


@app.command()
@clear_errors
def tail(
    run: Annotated[str | None, typer.Argument(help="Only this run.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    after: Annotated[
        int | None, typer.Option(min=0, help="Begin after this cursor; 0 shows everything kept.")
    ] = None,
) -> None:
    """Print alerts as they happen, across restarts of the aggregator, until interrupted."""
    try:
        for event in _follow(url, run, after):
            print(json.dumps(event), flush=True) if as_json else _print_alert(event)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


@app.command()
@clear_errors
def replay(
    files: Annotated[list[Path], typer.Argument(help="Spill files, or directories of them.")],
    endpoint: Annotated[
        str, typer.Option(envvar="GRADWATCH_ENDPOINT", help="Where the aggregator listens.")
    ] = DEFAULT_ENDPOINT,
    keys: Annotated[
        Path | None, typer.Option(help="Key file of a client. [env var: GRADWATCH_KEYS]")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete files whose records are all stored.")
    ] = False,
) -> None:
    """Send the records that killed workers left on disk; none is stored twice."""
    for sent in replay_files(files, endpoint, find_key(keys), remove=remove):
        hello = sent.source.hello
        print(f"{printable(hello.run)} rank {hello.rank}: {sent.num_sent} records sent, all stored")


def _get(url: str, path: str) -> Any:
    try:
        response = httpx.get(url.rstrip("/") + path, timeout=10.0, trust_env=False, **access())
    except UNREACHABLE as error:
        raise GradwatchError(_unreachable(url, error)) from error
    _check(response)
    try:
        return response.json()
    except ValueError as error:
        raise GradwatchError(_stranger(url)) from error


def _newest(url: str) -> int:
    """Return the cursor of the newest event, from where on a stream misses nothing."""
    try:
        return int(_get(url, "/healthz")["cursor"])
    except (KeyError, TypeError, ValueError) as error:
        raise GradwatchError(_stranger(url)) from error


def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    try:
        detail = json.loads(response.read())["detail"]
    except (ValueError, KeyError, TypeError):
        detail = f"HTTP {response.status_code}"
    raise GradwatchError(str(detail))


def _stranger(url: str) -> str:
    return f"what answers at {url} is no aggregator; give its address with --url"


def _unreachable(url: str, error: Exception) -> str:
    return (
        f"no aggregator answers at {url} ({error}); start one with 'gradwatch serve' or give --url"
    )


def _follow(url: str, run: str | None, after: int | None) -> Iterator[dict[str, Any]]:
    """Yield alert events; after a lost connection go on from the last one seen."""
    path = "/alerts/stream" if run is None else f"/runs/{quote(run, safe='')}/alerts/stream"
    seen = _newest(url) if after is None else after
    connected = False
    while True:
        headers = {"Last-Event-ID": str(seen)}
        try:
            with (
                httpx.Client(
                    timeout=httpx.Timeout(10.0, read=45.0), trust_env=False, **access()
                ) as client,
                httpx_sse.connect_sse(
                    client, "GET", url.rstrip("/") + path, headers=headers
                ) as source,
            ):
                _check(source.response)
                connected = "event-stream" in source.response.headers.get("content-type", "")
                for message in source.iter_sse():
                    if message.data:  # pings have none
                        seen = int(message.id)
                        yield message.json()
        except UNREACHABLE as error:
            if not connected:
                raise GradwatchError(_unreachable(url, error)) from error
        time.sleep(RECONNECT_S)


def _coloured(status: str) -> Text:
    return Text(printable(status), style=COLOURS.get(status, "yellow"))  # type: ignore[call-overload]  # StrEnum keys equal strings


def _text(value: object) -> Text:
    return Text(printable(str(value)))


def _print_alert(event: dict[str, Any]) -> None:
    line = Text.assemble(
        printable(f"#{event['cursor']} {event['run']} "),
        (printable(f"{event['state']} {event['severity']} {event['rule']}: "), "bold"),
        printable(event["message"]),
    )
    console.print(line, soft_wrap=True)


def _print_health(report: dict[str, Any]) -> None:
    score, norm, layers = report["score"], report["gradient_norm"], report["layers"]
    said_below = {alert["message"] for alert in report["alerts"]["items"]}
    lines: list[tuple[str, Any]] = [
        ("run", f"{report['run']} (attempt {report['attempt']})"),
        ("status", _coloured(report["status"])),
        *(("", reason) for reason in report["reasons"] if reason not in said_below),
        ("step", report["step"]),
        ("score", _listed(score, "last", "mean", "min")),
        ("gradient norm", _listed(norm, "last", "p50", "max")),
        ("layers", ", ".join(f"{count} {name}" for name, count in layers.items())),
        ("ranks", ", ".join(f"{r['rank']} {r['state']}" for r in report["ranks"])),
        ("records", ", ".join(f"{count} {name}" for name, count in report["records"].items())),
        ("first bad", _first_bad(report["first_bad"])),
    ]
    table = Table.grid(padding=(0, 2))
    for name, value in lines:
        table.add_row(Text(name), value if isinstance(value, Text) else _text(value))
    for alert in report["alerts"]["items"]:
        table.add_row(_text(alert["state"]), _text(f"{alert['rule']}: {alert['message']}"))
    console.print(table)


def _listed(numbers: dict[str, Any], *keys: str) -> str:
    return ", ".join(f"{key} {_short(numbers[key])}" for key in keys)


def _short(number: float | str | None) -> str:
    return f"{number:.4g}" if isinstance(number, (int, float)) else str(number)


def _first_bad(first_bad: dict[str, Any] | None) -> str:
    if first_bad is None:
        return "nothing non-finite"
    unknown = "not known"
    layer = first_bad["layer"] or unknown
    rank = unknown if first_bad["rank"] is None else first_bad["rank"]
    return f"{first_bad['kind']} in {layer} on rank {rank} at step {first_bad['step']}"
