"""One export: from the aggregator, page by page, into files, so that it can be interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gradwatch_server.cli.export.about import (
    BUCKETS,
    EXPORTED_AT,
    NULLS,
    RUN_NAMES,
    UNITS,
    About,
    Choice,
)
from gradwatch_server.cli.export.format import Format, Writer
from gradwatch_server.cli.export.part import Manifest, check_place, finish, held, part_of
from gradwatch_server.cli.export.source import Source
from gradwatch_server.errors import GradwatchError
from gradwatch_wire import __version__

SEAL_ROWS: Final = 1_000_000
"""Rows of layers after which what is written is sealed: an interruption costs no more."""


class InterruptedExportError(GradwatchError):
    """An export ended before it was complete; what is there can be gone on with."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an export.

    Args:
        epoch: The epoch that is being exported.
        step: Its newest step that was written.
        last: Its last step.
    """

    epoch: int
    step: int
    last: int


@dataclass(slots=True, kw_only=True)
class Job:
    """Exports one attempt of a run.

    Args:
        source: Where it comes from.
        format: How it is written.
        choice: What of it is wanted.
        out: The directory that it becomes.
        on_progress: Is told after each page.
        seal_rows: As `SEAL_ROWS`.
    """

    source: Source
    format: Format
    choice: Choice
    out: Path
    on_progress: Callable[[Progress], None] = lambda _: None
    seal_rows: int = SEAL_ROWS

    def run(self, *, resume: bool) -> dict[str, Any]:
        """Export, and return the metadata.

        Raises:
            GradwatchError: If it cannot begin, or does not come to its end; what is there already
                is kept then.
        """
        goes_on = check_place(self.out, resume=resume)
        part = part_of(self.out)
        manifest = self._found(Manifest.read(part)) if goes_on else self._begin()
        layers = self.source.layers()
        about = About(
            run=manifest.run,
            attempt=manifest.attempt,
            page=self.source.page_url,
            layers=layers[: manifest.facts["num_layers"]],
            choice=self.choice,
            facts=manifest.facts,
        )
        with held(part), _telling_what_is_kept(part):
            manifest.write(part)
            self._write(manifest, about, part)
            metadata = _metadata(manifest, about)
            finish(part, self.out, metadata)
        return metadata

    def _begin(self) -> Manifest:
        """Note what there is: what a live run adds from here on is not exported."""
        health = self.source.health()
        page = self.source.first_page(self.choice)
        epochs = [own for own in map(self._within, page.facts["epochs"]) if own is not None]
        if not epochs:
            where = "" if self.choice.is_all else " among the steps that are asked for"
            msg = f"run {self.source.run} has no closed step to export{where}"
            raise GradwatchError(msg)
        facts = {
            "gradwatch": __version__,
            EXPORTED_AT: datetime.now(UTC).isoformat(timespec="seconds"),
            "url": self.source.page_url,
            "run": self.source.run,
            "attempt": self.source.attempt,
            "phase": health["phase"],
            "live": health["phase"] in ("waiting", "running"),
            "point": health["point"],
            "num_layers": len(self.source.layers()),
            "epochs": epochs,
            "choice": self.choice.plain(),
            "units": {
                name: unit
                for name, unit in UNITS.items()
                if name in ("time", "numel", *RUN_NAMES, *self.choice.columns)
            },
            "nulls": NULLS,
            "buckets": BUCKETS,
        }
        return Manifest(
            run=self.source.run,
            attempt=self.source.attempt,
            format=self.format.name,
            choice=self.choice.plain(),
            facts=facts,
            epochs=[list(own) for own in epochs],
        )

    def _within(self, span: list[int]) -> list[int] | None:
        """Return the part of an epoch that is wanted, None if none of it is."""
        epoch, first, last = span
        first = max(first, self.choice.first)
        last = last if self.choice.last is None else min(last, self.choice.last)
        return [epoch, first, last] if first <= last else None

    def _found(self, manifest: Manifest) -> Manifest:
        """Check that what is there is of the same export."""
        asked = {
            "run": self.source.run,
            "attempt": self.source.attempt,
            "format": self.format.name,
            "choice": self.choice.plain(),
        }
        for name, wanted in asked.items():
            found = getattr(manifest, name)
            if found != wanted:
                part = part_of(self.out)
                msg = f"cannot go on: {part} is of {name} {found}, not {wanted}; delete it"
                raise GradwatchError(msg)
        return manifest

    def _write(self, manifest: Manifest, about: About, part: Path) -> None:
        writer = self.format.open(part, about, manifest.sealed)
        with contextlib.closing(writer):
            while manifest.epochs:
                self._epoch(manifest, writer, part)
            alerts = [own for own in self.source.alerts() if self._is_wanted(own)]
            writer.add_alerts(alerts)
            manifest.sealed = writer.seal()

    def _epoch(self, manifest: Manifest, writer: Writer, part: Path) -> None:
        """Export the first of the epochs that are left, until it is done or sealed."""
        epoch, first, last = manifest.epochs[0]
        rows, step = 0, first
        while step <= last and rows < self.seal_rows:
            page = self.source.page(self.choice, epoch, step, last)
            if len(page.steps):
                writer.add(page)
            end = last if page.next is None else page.next - 1
            if len(page.steps):
                manifest.note(epoch, max(int(page.steps[0]), 0), end, page.width)
            rows, step = rows + page.num_numbers, end + 1
            self.on_progress(Progress(epoch, end, last))
        if step > last:
            manifest.epochs.pop(0)
        else:
            manifest.epochs[0] = [epoch, step, last]
        manifest.sealed = writer.seal()
        manifest.write(part)

    def _is_wanted(self, alert: dict[str, Any]) -> bool:
        begins_late = self.choice.last is not None and alert["first_step"] > self.choice.last
        return not begins_late and alert["last_step"] >= self.choice.first


@contextlib.contextmanager
def _telling_what_is_kept(part: Path) -> Iterator[None]:
    """Say of whatever ends an export early what is kept, and how to go on."""
    try:
        yield
    except (GradwatchError, OSError, KeyboardInterrupt) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        what = "stopped" if isinstance(error, KeyboardInterrupt) else why
        kept = f"{part} keeps what there is ({_kept(part)})"
        msg = f"not complete: {what}; {kept}: go on with --resume"
        raise InterruptedExportError(msg) from error


def _kept(part: Path) -> str:
    """Say up to where what was written is sealed: the rest is written again."""
    try:
        kept = Manifest.read(part).kept
    except GradwatchError:  # the disk was full before it could be written
        kept = []
    return f"up to step {kept[-1][2]}" if kept else "nothing yet"


def _metadata(manifest: Manifest, about: About) -> dict[str, Any]:
    kept = [
        {"epoch": epoch, "first_step": first, "last_step": last, "steps_per_row": width}
        for epoch, first, last, width in manifest.kept
    ]
    layers = [dict(own.described) for own in about.layers]
    return {**manifest.facts, "kept": kept, "layers": layers}
