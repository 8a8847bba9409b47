"""`gradwatch ack`: says that somebody knows of an alert."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import quote

import typer

from gradwatch_server.cli.client import ask
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, By, Comment, Url
from gradwatch_server.cli.user import user_name
from gradwatch_server.core.printable import printable


def ack(
    alert: Annotated[str, typer.Argument(help="Id of an alert that fires.")],
    url: Url = DEFAULT_URL,
    by: By = None,
    comment: Comment = "",
    as_json: AsJson = False,
) -> None:
    """Say that you know of an alert; it goes on, and others see who knows."""
    body = {"by": by or user_name(), "comment": comment}
    known = ask("POST", url, f"/alerts/{quote(alert, safe='')}/ack", body)
    if as_json:
        print(json.dumps(known))
    else:
        who = known["acknowledged"]
        print(printable(f"{known['id']} is acknowledged by {who['by']} since {who['at']}"))
