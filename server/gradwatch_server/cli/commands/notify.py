"""`gradwatch notify`: tests the targets of notifications, and says how each is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gradwatch_server.cli.client import get
from gradwatch_server.cli.errors import clear_errors
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url
from gradwatch_server.cli.rendering import console, plain
from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError
from gradwatch_server.notify.deadline import Deadline
from gradwatch_server.notify.notifiers.base import DeliveryError
from gradwatch_server.notify.settings import Target, Targets
from gradwatch_server.settings import load_settings

notify = typer.Typer(
    name="notify",
    help="Test the targets of notifications, and say how each is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_HOW = "set one as [notify.NAME] in gradwatch.toml (docs/notifications.md)"


@notify.command(name="test")
@clear_errors
def send_test(
    target: Annotated[
        str | None, typer.Argument(help="Name of one target.", show_default="all")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings file.", show_default="gradwatch.toml if there is one"),
    ] = None,
) -> None:
    """Send a test message to each target of the settings; no aggregator is needed."""
    settings = load_settings(config)
    failed = False
    for name, own in _chosen(settings.notify, target).items():
        fault = _test(name, own, settings.public_url)
        failed |= fault is not None
        print(f"{name}: ok" if fault is None else f"{name}: failed: {printable(fault)}")
    if failed:
        raise typer.Exit(1)


def _chosen(targets: Targets, name: str | None) -> dict[str, Target]:
    """Return the targets that are asked for."""
    if not targets.root:
        msg = f"there are no targets; {_HOW}"
        raise GradwatchError(msg)
    if name is None:
        return targets.root
    if name not in targets.root:
        msg = f"no target {name[:80]!a}; there are {', '.join(targets.root)}"
        raise GradwatchError(msg)
    return {name: targets.root[name]}


def _test(name: str, target: Target, page_url: str | None) -> str | None:
    """Send a test message; return why that failed, None if it did not."""
    try:
        notifier = target.notifier(name)
        Deadline(f"gradwatch-notify-{name}").run(lambda: notifier.test(page_url))
    except (DeliveryError, GradwatchError) as error:
        return str(error)
    return None


@notify.command(name="list")
@clear_errors
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the targets of an aggregator: what waits, what was delivered, the last error."""
    items = get(url, "/notifiers")
    if as_json:
        for item in items:
            print(json.dumps(item))
        return
    console.print(_table(items) if items else f"no targets; {_HOW}", markup=False)


def _table(items: list[dict[str, Any]]) -> Table:
    table = Table("target", "type", "event", "waits", "delivered", "last", "error", box=None)
    for item in items:
        table.add_row(
            plain(item["name"]),
            plain(item["type"]),
            str(item["cursor"]),
            str(item["pending"]),
            str(item["messages"].get("delivered", 0)),
            (item["succeeded_at"] or "never")[:19],
            plain(item["error"] or "-"),
        )
    return table
