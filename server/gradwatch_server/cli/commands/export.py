"""`gradwatch export`: writes what is kept of a run into files that others read."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import Progress as Bar

from gradwatch_server.cli.client import get, query_of, run_path
from gradwatch_server.cli.export.about import ExportSelection
from gradwatch_server.cli.export.format import Format
from gradwatch_server.cli.export.formats import FORMATS
from gradwatch_server.cli.export.job import ExportProgress, Job
from gradwatch_server.cli.export.source import Source
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url, check_name
from gradwatch_server.core.frames.rows import FRAME_COLUMNS
from gradwatch_server.core.printable import printable
from gradwatch_wire.limits import MAX_STEP

NO_LAYERS: Final = "none"


def export(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    to: Annotated[str, typer.Option(metavar="|".join(FORMATS), help="What to write.")],
    url: Url = DEFAULT_URL,
    out: Annotated[
        Path | None, typer.Option(help="The directory that is made.", show_default="RUN-FORMAT")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="An attempt.", show_default="the current one")
    ] = None,
    from_: Annotated[int, typer.Option("--from", min=0, max=MAX_STEP, help="The first step.")] = 0,
    to_step: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_STEP, help="The last step.", show_default="the newest"),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(help=f"Layers that fit a pattern, or '{NO_LAYERS}'.", show_default="all"),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="A column of the layers; may be given several times.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write what is kept of a run into files that others read."""
    check_name(out, "--out")
    format_ = FORMATS.get(to)
    if format_ is None:
        raise typer.BadParameter(f"one of {', '.join(FORMATS)}", param_hint="--to")
    choice = _choice(format_, from_, to_step, layers, column)
    format_.check()
    place = out or Path(default_name(run, attempt, to))
    number = attempt or int(get(url, run_path(run, "health") + query_of())["attempt"])
    with contextlib.closing(Source(url, run, number)) as source, _progress() as on_progress:
        job = Job(source=source, format=format_, choice=choice, out=place, on_progress=on_progress)
        metadata = job.run()
    if as_json:
        print(json.dumps({"path": str(place)} | metadata))
    else:
        print(printable(_said(place, metadata)))


def _choice(
    format_: type[Format],
    first: int,
    last: int | None,
    layers: str | None,
    column: list[str] | None,
) -> ExportSelection:
    columns = tuple(column or format_.columns)
    if not set(columns) <= set(FRAME_COLUMNS):
        raise typer.BadParameter(f"one of {', '.join(FRAME_COLUMNS)}", param_hint="--column")
    if last is not None and last < first:
        raise typer.BadParameter(f"{first} or a later step", param_hint="--to-step")
    wanted = None if layers == NO_LAYERS else layers or "*"
    return ExportSelection(first=first, last=last, layers=wanted, columns=columns)


def default_name(run: str, attempt: int | None, ending: str) -> str:
    """Return the name of the directory of an export: that of the run, safe as a file's."""
    safe = re.sub(r"[^\w.+-]+", "_", run).lstrip(".")[:100] or "run"
    return "-".join([safe, *([str(attempt)] if attempt else []), ending])


def _said(place: Path, metadata: dict[str, Any]) -> str:
    texts = [
        f"steps {part['first_step']} to {part['last_step']}"
        + ("" if part["steps_per_row"] == 1 else f" in buckets of {part['steps_per_row']}")
        for part in metadata["kept"]
    ]
    live = "; the run is live: what came later is not in it" if metadata["live"] else ""
    of = f"run {metadata['run']}, attempt {metadata['attempt']}"
    return f"{place}: {of}, {', '.join(texts) or 'no steps'}{live}"


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[ExportProgress], None]]:
    """Show how far it is, where somebody looks."""
    errors = Console(stderr=True)
    with Bar(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("exporting", total=None)
        yield lambda progress: bar.update(task, completed=progress.step, total=progress.last)
