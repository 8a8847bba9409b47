"""`gradwatch rules`: shows the rules in force, checks a file, and judges a stored run by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer
from rich.table import Table
from rich.text import Text

from gradwatch_server.cli.client import get, named
from gradwatch_server.cli.errors import clear_errors
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url
from gradwatch_server.cli.rendering import coloured, console, plain, show_table
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.table import BUDGET
from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError
from gradwatch_server.settings import load_settings
from gradwatch_server.storage.retrial import judge_again
from gradwatch_server.stores import read_stored_log
from gradwatch_wire.jsonable import jsonable

COMMON: Final = ("enabled", "for_steps", "clear_steps", "severity", "runs", "layers", "groups")
"""Settings that have a column of their own, or are shown only where they limit."""

rules = typer.Typer(name="rules", add_completion=False, pretty_exceptions_enable=False)


@rules.callback(invoke_without_command=True)
@clear_errors
def in_force(
    context: typer.Context,
    url: Url = DEFAULT_URL,
    run: Annotated[
        str | None, typer.Option(help="Say of each rule what it watches of this run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the rules in force; `gradwatch rules check FILE` tries others."""
    if context.invoked_subcommand is not None:
        return
    told = get(url, "/rules" if run is None else f"/rules?{urlencode({'run': named(run)})}")
    if as_json:
        print(json.dumps(told))
        return
    items = told["rules"]
    show_table(_rules_table(items, run), least=("clear", "for"))
    console.print(f"{BUDGET} {told[BUDGET]:g}")
    for item in items:
        if warning := item.get("watches", {}).get("warning"):
            console.print(plain(f"{item['rule']}: {warning}"))


def _rules_table(items: list[dict[str, Any]], run: str | None) -> Table:
    table = Table("rule", "severity", "for", "clear", "settings", box=None)
    if run is not None:
        table.add_column("watches")
    for item in items:
        settings = item["settings"]
        row: list[Text | str] = [
            plain(item["rule"]),
            coloured(settings["severity"]) if settings["enabled"] else plain("off"),
            str(settings["for_steps"]),
            str(settings["clear_steps"]),
            plain(_settings(settings)),
        ]
        table.add_row(
            *row, *(plain(_watches(watched)) for watched in [item.get("watches")] if watched)
        )
    return table


def _settings(settings: dict[str, Any]) -> str:
    limits = {key: settings[key] for key in ("runs", "layers", "groups") if settings.get(key)}
    rest = {key: value for key, value in settings.items() if key not in COMMON}
    return ", ".join(f"{key} {value}" for key, value in (rest | limits).items())


def _watches(watched: dict[str, Any]) -> str:
    if not watched["run"]:
        return "not this run"
    return "the run" if watched["layers"] is None else f"{watched['layers']} layers"


@rules.command()
@clear_errors
def check(
    file: Annotated[Path, typer.Argument(help="A settings file, such as gradwatch.toml.")],
    run: Annotated[
        str | None, typer.Option(help="Judge what is stored of this run by the rules of the file.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data directory of the aggregator.", show_default="as in the file: gradwatch-data"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the rules of a file, and show the alerts that they raise in a stored run."""
    settings = load_settings(file, data=data)
    if run is None:
        _print_valid(file, settings.rules, as_json=as_json)
        return
    if settings.store is not None:
        msg = "rules are tried on the log of a data directory: unset `store` and give --data"
        raise GradwatchError(msg)
    log = read_stored_log(settings.data, run)
    alerts = judge_again(log, run, settings.rules, settings.window_steps)
    if as_json:
        for alert in alerts:
            print(json.dumps(jsonable(alert.to_dict())))
    elif not alerts:
        print("no alerts")
    else:
        for alert in alerts:
            console.print(_line(alert), soft_wrap=True)


def _line(alert: Alert) -> Text:
    """Return one line, as `gradwatch tail` shows an alert, with its steps in place of times."""
    return Text.assemble(
        plain(f"{alert.run}/{alert.attempt} steps {alert.first_step} to {alert.last_step} "),
        plain(f"{alert.state} "),
        coloured(alert.severity),
        plain(f" {alert.rule}: {alert.message}"),
    )


def _print_valid(file: Path, rules: Rules, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"file": str(file), "rules": rules.model_dump(mode="json")}))
        return
    changed = ", ".join(rules.differing(Rules())) or "none"
    print(printable(f"{file}: valid; not as by default: {changed}"))
