"""Pictures of the page: an incident's log, replayed by a real aggregator, in Chromium."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Entry, Opened, Received
from gradwatch_server.storage.rows import LogEntry
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_wire import encode
from incidents.incident import Incident
from tests.support.aggregator import Aggregator
from tests.support.chromium import chromium
from tests.support.waiting import PATIENCE_S, wait_until

SIZE: Final = {"width": 860, "height": 1400}
MARGIN: Final = 12
WRONG: Final = ".ruler .alert, .ruler .bad"
"""Marks above the picture: an alert began, something was not finite."""

AGE_NS: Final = 60 * 10**9
"""How long ago the last of them ended: what is too old would be deleted."""


def write_log(incidents: Iterable[Incident], directory: Path) -> None:
    """Write the entries of all as an aggregator would have, ending a minute ago."""
    store = SQLiteStore.open(directory, Clock())
    try:
        for incident in incidents:
            entries = list(incident.log())
            shift_ns = time.time_ns() - AGE_NS - entries[-1].received_ns
            run = next(entry.body.hello.run for entry in entries if isinstance(entry.body, Opened))
            store.log.append([_line(run, entry, shift_ns) for entry in entries])
    finally:
        store.close()


def _line(run: str, entry: Entry, shift_ns: int) -> LogEntry:
    moved = dataclasses.replace(entry, received_ns=entry.received_ns + shift_ns)
    match entry.body:
        case Received(envelope):
            return LogEntry(run, moved, encode(envelope))
        case _:
            return LogEntry(run, moved)


def take(incidents: Sequence[Incident], directory: Path, folder: Path) -> list[Path]:
    """Write a picture of each.

    Args:
        incidents: Those whose log is written.
        directory: Where.
        folder: Where the pictures are put, as `incident-NAME.png`.

    Returns:
        The files.
    """
    aggregator = Aggregator(directory)
    try:
        aggregator.start()
        with chromium() as browser:
            return [_take(browser, aggregator, each, folder) for each in incidents]
    finally:
        aggregator.close()


def _take(browser: Any, aggregator: Aggregator, incident: Incident, folder: Path) -> Path:
    name = incident.case.name
    last = len(incident.recorded.rows) - 1
    wait_until(lambda: aggregator.health(name)["step"] == last, f"{name} is there")
    file = folder / f"incident-{name}.png"
    context = browser.new_context(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
    try:
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE_S)
        page.goto(f"{aggregator.url}/?run={name}")
        page.get_by_role("button", name="By module").click()
        page.mouse.move(0, 0)
        page.locator(WRONG).first.wait_for()
        legend = page.locator(".legend").bounding_box()
        height = legend["y"] + legend["height"] + MARGIN
        page.screenshot(
            path=file,
            animations="disabled",
            clip={"x": 0, "y": 0, "width": SIZE["width"], "height": height},
        )
    finally:
        context.close()
    return file
