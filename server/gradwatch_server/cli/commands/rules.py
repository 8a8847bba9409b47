"""`gradwatch rules`: shows the rules in force, checks a file, and tries it on a stored run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from gradwatch_server.cli.client import get, named
from gradwatch_server.cli.errors import clear_errors
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url
from gradwatch_server.cli.rendering import coloured, console, plain
from gradwatch_server.core.alerting.comparison import Compared, Incident
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.printable import printable
from gradwatch_server.settings import load_settings
from gradwatch_server.storage.retrial import JudgedAttempt, Retrial, judge_again
from gradwatch_server.stores import read_store

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
    items = get(url, "/rules" if run is None else f"/rules?{urlencode({'run': named(run)})}")
    if as_json:
        for item in items:
            print(json.dumps(item))
        return
    console.print(_rules_table(items, run))
    for item in items:
        if warning := item.get("watches", {}).get("warning"):
            console.print(plain(f"{item['rule']}: {warning}"))


def _rules_table(items: list[dict[str, Any]], run: str | None) -> Table:
    table = Table("rule", "severity", "for", "clear", "settings", box=None)
    if run is not None:
        table.add_column("watches")
    for item in items:
        own = item["settings"]
        row: list[Text | str] = [
            plain(item["rule"]),
            coloured(own["severity"]) if own["enabled"] else plain("off"),
            str(own["for_steps"]),
            str(own["clear_steps"]),
            plain(_settings(own)),
        ]
        table.add_row(*row, *(plain(_watches(own)) for own in [item.get("watches")] if own))
    return table


def _settings(own: dict[str, Any]) -> str:
    limits = {key: own[key] for key in ("runs", "layers", "groups") if own.get(key)}
    rest = {key: value for key, value in own.items() if key not in COMMON}
    return ", ".join(f"{key} {value}" for key, value in (rest | limits).items())


def _watches(own: dict[str, Any]) -> str:
    if not own["run"]:
        return "not this run"
    return "the run" if own["layers"] is None else f"{own['layers']} layers"


@rules.command()
@clear_errors
def check(
    file: Annotated[Path, typer.Argument(help="A settings file, such as gradwatch.toml.")],
    run: Annotated[
        str | None,
        typer.Option(help="Judge what is stored of this run by the rules of the file."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data directory of the aggregator.", show_default="as in the file: gradwatch-data"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the rules of a file, and show what would have fired beside what did."""
    settings = load_settings(file, data=data)
    if run is None:
        _print_valid(file, settings.rules, as_json=as_json)
        return
    with contextlib.closing(read_store(settings.data)) as history, _progress() as on_progress:
        retrial = judge_again(history, run, settings.rules, settings.window_steps, on_progress)
    if as_json:
        print(json.dumps({"file": str(file), "run": run} | _plain(retrial)))
    else:
        _print_valid(file, settings.rules, as_json=False)
        _print_retrial(run, retrial)


def _print_valid(file: Path, rules: Rules, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"file": str(file), "rules": rules.model_dump(mode="json")}))
        return
    changed = ", ".join(rules.differing(Rules())) or "none"
    print(printable(f"{file}: valid; not as by default: {changed}"))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show how far a long log is read, where somebody looks."""
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("reading the log", total=None)
        yield lambda read, total: bar.update(task, completed=read, total=total)


def _plain(retrial: Retrial) -> dict[str, Any]:
    return {
        "attempts": [asdict(own) for own in retrial.attempts],
        "alerts": [asdict(own) for own in retrial.alerts],
        "warnings": retrial.warnings,
        "not_applied": retrial.not_applied,
    }


def _print_retrial(run: str, retrial: Retrial) -> None:
    for attempt in retrial.attempts:
        console.print(plain(f"{run}: {_judged(attempt)}"))
    for warning in retrial.warnings:
        console.print(plain(warning))
    if retrial.not_applied:
        console.print(plain(f"{retrial.not_applied} records could not be judged"))
    if retrial.alerts:
        console.print(_alerts_table(retrial.alerts, several=len(retrial.attempts) > 1))
    else:
        print("nothing fired, and nothing would have")


def _judged(own: JudgedAttempt) -> str:
    if own.first_step is None:
        return f"attempt {own.attempt} has no step that is kept"
    kept = "; what was before is not kept any more" if own.trimmed else ""
    span = f"steps {own.first_step} to {own.last_step}"
    return f"attempt {own.attempt} judged in {own.frames} frames, {span}{kept}"


def _alerts_table(alerts: list[Compared], *, several: bool) -> Table:
    headings = ("fires", "rule", "group", "severity", "from step", "to step", "layer")
    table = Table(*(("attempt", *headings) if several else headings), box=None)
    for row in alerts:
        own = row.either
        cells = [
            plain(row.verdict),
            plain(own.rule),
            plain(own.group),
            plain(_changed(row, "severity")),
            plain(_changed(row, "first_step")),
            plain(_until(row)),
            plain(_layer(own)),
        ]
        table.add_row(*([str(own.attempt)] if several else []), *cells)
    return table


def _changed(row: Compared, key: str) -> str:
    """Show a value, and what it was before if it was another."""
    value = getattr(row.either, key)
    before = getattr(row.before, key, value)
    return str(value) if value == before else f"{value} (was {before})"


def _until(row: Compared) -> str:
    """Show when it was over, else its last bad step: events of what fires on do not say it all."""
    own = row.either
    if own.resolved_step is not None:
        return str(own.resolved_step)
    return f"{own.last_step}{' or later' if row.now is None else ''}, fires on"


def _layer(own: Incident) -> str:
    if own.layer is None:  # which of them was first is not known
        return f"{own.num_layers} layers" if own.num_layers else "-"
    return f"{own.layer} and {own.num_layers - 1} more" if own.num_layers > 1 else own.layer
