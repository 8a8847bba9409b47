"""`gradwatch silence`: makes, lists and ends silences."""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from gradwatch_server.cli.client import ask, get
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, By, Comment, Url
from gradwatch_server.cli.user import user_name
from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def silence(
    run: Annotated[str | None, typer.Option(help="Pattern of names of runs.")] = None,
    rule: Annotated[str | None, typer.Option(help="Pattern of names of rules.")] = None,
    layers: Annotated[
        str | None, typer.Option(help="Pattern that all layers of an alert fit.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--for", help="How long: 30m, 2h, 1d; 1h if not given.")
    ] = None,
    end: Annotated[str | None, typer.Option(help="End the silence of this id instead.")] = None,
    url: Url = DEFAULT_URL,
    by: By = None,
    comment: Comment = "",
    as_json: AsJson = False,
) -> None:
    """Keep the alerts that fit the patterns from being told; without patterns list the silences."""
    patterns = {
        name: pattern
        for name, pattern in (("run", run), ("rule", rule), ("layers", layers))
        if pattern is not None
    }
    if end is not None:
        if patterns:
            msg = "--end is for a silence that is there; it takes no patterns"
            raise GradwatchError(msg)
        ask("DELETE", url, f"/silences/{quote(end, safe='')}")
        return
    if not patterns and (duration is not None or comment):
        msg = "say which alerts to silence: --run, --rule or --layers"
        raise typer.BadParameter(msg)
    if not patterns:
        _show(get(url, "/silences"), as_json=as_json)
        return
    body = {"for_s": _seconds(duration or "1h"), "by": by or user_name(), "comment": comment}
    made = ask("POST", url, "/silences", patterns | body)
    for warning in made["warnings"]:
        print(f"gradwatch: warning: {printable(warning)}", file=sys.stderr)
    _show([made], as_json=as_json)


def _seconds(duration: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,8})([smhd])", duration)
    if match is None:
        msg = f"--for: a number with s, m, h or d, such as 30m, got {duration!a}"
        raise GradwatchError(msg)
    return int(match[1]) * _SECONDS[match[2]]


def _show(silences: list[dict[str, Any]], *, as_json: bool) -> None:
    for each in silences:
        if as_json:
            print(json.dumps(each))
            continue
        what = f"run {each['run']}, rule {each['rule']}, layers {each['layers']}"
        reason = f": {each['comment']}" if each["comment"] else ""
        print(
            printable(f"{each['id']} {what}, until {each['until'][:19]}, by {each['by']}{reason}")
        )
    if not silences and not as_json:
        print("no silences")
