"""One export: from the aggregator, page by page, into a directory that is renamed at its end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
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
    ExportSelection,
)
from gradwatch_server.cli.export.format import Format
from gradwatch_server.cli.export.source import Source
from gradwatch_server.errors import GradwatchError
from gradwatch_wire import __version__

PART: Final = ".part"
"""End of the name of a directory that is not whole yet."""


class IncompleteExportError(GradwatchError):
    """An export ended before it was whole, and left nothing."""


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """Progress of an export."""

    epoch: int
    step: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Export of one attempt of a run."""

    source: Source
    format: type[Format]
    choice: ExportSelection
    out: Path
    on_progress: Callable[[ExportProgress], None] = lambda _: None

    def run(self) -> dict[str, Any]:
        """Export, and return the metadata.

        Raises:
            GradwatchError: If the export cannot begin.
            IncompleteExportError: If it does not come to its end.
        """
        if self.out.exists() or self.out.is_symlink():
            msg = f"{self.out} is there already; delete it, or give another path with --out"
            raise GradwatchError(msg)
        about = self._describe()
        with _new_directory(self.out) as part:
            writer = self.format(part, about)
            with contextlib.closing(writer):
                kept = [
                    part for epoch in about.facts["epochs"] for part in self._epoch(epoch, writer)
                ]
                writer.add_alerts(
                    [alert for alert in self.source.alerts() if self._is_wanted(alert)]
                )
            metadata = {**about.facts, "kept": kept, "layers": about.layers}
            (part / "metadata.json").write_text(json.dumps(metadata, indent=1), "utf-8")
        return metadata

    def _describe(self) -> About:
        """Return what is there now: steps that a live run adds later are not exported."""
        source, choice = self.source, self.choice
        health = source.health()
        spans = map(self._within, source.first_page(choice).facts["epochs"])
        epochs = [span for span in spans if span is not None]
        if not epochs:
            where = "" if choice.is_all else " among the steps that are asked for"
            msg = f"run {source.run} has no closed step to export{where}"
            raise GradwatchError(msg)
        named = ("time", "numel", *RUN_NAMES, *choice.columns)
        layers = source.layers()
        facts = {
            "gradwatch": __version__,
            EXPORTED_AT: datetime.now(UTC).isoformat(timespec="seconds"),
            "url": source.page_url,
            "run": source.run,
            "attempt": source.attempt,
            "phase": health["phase"],
            "live": health["phase"] in ("waiting", "running"),
            "point": health["point"],
            "num_layers": len(layers),
            "epochs": epochs,
            "choice": choice.plain(),
            "units": {name: unit for name, unit in UNITS.items() if name in named},
            "nulls": NULLS,
            "buckets": BUCKETS,
        }
        return About(source.run, source.attempt, source.page_url, layers, choice, facts)

    def _within(self, span: list[int]) -> list[int] | None:
        """Return the part of an epoch that is wanted, None if none of it is."""
        epoch, first, last = span
        first = max(first, self.choice.first)
        last = last if self.choice.last is None else min(last, self.choice.last)
        return [epoch, first, last] if first <= last else None

    def _epoch(self, span: list[int], writer: Format) -> list[dict[str, int]]:
        """Write an epoch; return its stretches of steps that are kept in one width."""
        epoch, step, last = span
        kept: list[dict[str, int]] = []
        while step <= last:
            page = self.source.page(self.choice, epoch, step, last)
            end = last if page.next is None else page.next - 1
            if len(page.steps):
                writer.add(page)
                if kept and kept[-1]["steps_per_row"] == page.width:
                    kept[-1]["last_step"] = end
                else:
                    first = max(int(page.steps[0]), 0)
                    part = {"epoch": epoch, "first_step": first, "last_step": end}
                    kept.append(part | {"steps_per_row": page.width})
            step = end + 1
            self.on_progress(ExportProgress(epoch, end, last))
        return kept

    def _is_wanted(self, alert: dict[str, Any]) -> bool:
        begins_late = self.choice.last is not None and alert["first_step"] > self.choice.last
        return not begins_late and alert["last_step"] >= self.choice.first


@contextlib.contextmanager
def _new_directory(out: Path) -> Iterator[Path]:
    """Yield a directory that is renamed to *out* at the end, or deleted on an error.

    Raises:
        GradwatchError: If the directory cannot be made, or another export writes to it.
        IncompleteExportError: If an error ended the export.
    """
    part = out.with_name(out.name + PART)
    try:
        part.mkdir(parents=True, exist_ok=True)
        lock = os.open(part, os.O_RDONLY)
    except OSError as error:
        msg = f"cannot make {part}: {error.strerror}"
        raise GradwatchError(msg) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        msg = f"another export writes to {part} just now"
        raise GradwatchError(msg) from error
    try:
        for left in part.iterdir():  # by an export that was killed
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        yield part
        for path in (*part.rglob("*"), part):
            _sync(path)
        part.rename(out)
        _sync(out.parent)
    except (GradwatchError, OSError, KeyboardInterrupt) as error:
        shutil.rmtree(part, ignore_errors=True)
        cause = (isinstance(error, OSError) and error.strerror) or str(error)
        reason = "stopped" if isinstance(error, KeyboardInterrupt) else cause
        msg = f"not complete, so that nothing was kept: {reason}"
        raise IncompleteExportError(msg) from error
    finally:
        os.close(lock)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
