"""`gradwatch notify`: tests the targets of notifications, and says how each is."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.text import Text

from gradwatch_server.cli.client import get
from gradwatch_server.cli.errors import clear_errors
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Config, Url
from gradwatch_server.cli.rendering import console, moment, plain
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
    config: Config = None,
) -> None:
    """Send a test message to each target of the settings; no aggregator is needed."""
    settings = load_settings(config)
    failed = False
    for name, chosen in _chosen(settings.notify, target).items():
        fault = _test(name, chosen, settings.public_url)
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
    if not items:
        print(f"no targets; {_HOW}")
    for item in items:
        console.print(_lines(item), soft_wrap=True)


def _lines(item: dict[str, Any]) -> Text:
    """Return a line on a target, and one on what it last failed with; nothing of them is cut."""
    messages = item["messages"]
    last = f", the last at {moment(item['succeeded_at'])}" if item["succeeded_at"] else ""
    given_up = f", {messages['given_up']} given up" if messages.get("given_up") else ""
    line = plain(
        f"{item['name']} ({item['type']}): {item['pending']} wait, "
        f"{messages.get('delivered', 0)} delivered{last}{given_up}, up to event {item['cursor']}"
    )
    if item["error"]:
        times = "once" if item["attempts"] == 1 else f"{item['attempts']} times"
        line.append("\n    ").append_text(plain(f"failed {times} in a row: {item['error']}"))
    return line
