"""Fairness: an honest sender and reader, alone and beside each attack.

Each attack has an aggregator of its own, with the honest ones there before it. Their times while
nothing else happened, over all attacks together, are what those during an attack are divided by:
both are of one run on one machine.
"""

from __future__ import annotations

import contextlib
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.attacks.attack import Outcome, Refused, Target
from benchmarks.attacks.registry import ATTACKS, run_attack
from benchmarks.documents import Section
from benchmarks.harness import Aggregator, Worker, aggregator, chosen, logged, workers
from benchmarks.honest import PATIENCE_S, Place, Times, Told, newcomer, work
from benchmarks.report import console, quantile, show

RUN: Final = "honest"
CONFIG: Final = "log_max_bytes = 67108864\ncheckpoint_s = 1.0\n"
"""A log that an attack can fill while it is measured, and entries that may be trimmed at once."""

USUAL_FILES: Final = 1_024
"""Files that a process may open where nobody changed it (`ulimit -n`)."""

MAX_P99_MS: Final = 100.0
MAX_HALF_P99_MS: Final = 20.0
"""Of /health while records come at half of the rate that can be taken."""

MAX_RATIO: Final = 5.0
MAX_MEMORY_MB: Final = 1_000.0
SHARES: Final = (0.5, 0.99)
COLUMNS: Final = (
    *("beside", "ack p50, ms", "ack p99", "/health p50, ms", "/health p99"),
    *("memory MB", "disk MB", "log lines"),
)

SECTION: Final = Section.of("reliability.md", "fairness")


@dataclass(slots=True)
class Row:
    """Measurements beside one attack."""

    name: str
    quiet: Times
    during: Times = field(default_factory=Times)
    memory_mb: float = 0.0
    disk_mb: float = 0.0  # of the data, and of the aggregator's own log
    log_lines: int = 0
    refused: Refused = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    wrongs: list[str] = field(default_factory=list)  # what happened to the honest


def run(*, quick: bool = False, only: str = "", write: bool = False) -> None:
    """Measure and print; exit 1 if something honest was refused, lost or trimmed."""
    quiet_s, attack_s = (0.4, 0.7) if quick else (8.0, 20.0)
    rows = []
    for name in chosen(ATTACKS, only):
        rows.append(_measure(name, quiet_s, attack_s))
        console.print(f"{name}: {_verdict(rows[-1])}", markup=False, highlight=False)
    quiet = _quiet(rows)
    table = [["nothing", *_cells(quiet, quiet), "", "", ""], *(_line(row, quiet) for row in rows)]
    notes = _notes(rows, attack_s)
    show("fairness", COLUMNS, table, *notes, section=SECTION if write else None)
    if not quick and any(row.wrongs for row in rows):
        sys.exit(1)


def _measure(name: str, quiet_s: float, attack_s: float) -> Row:
    config = CONFIG + ATTACKS[name].config
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = min(USUAL_FILES, hard), hard
    with aggregator(config, files=files) as server, contextlib.ExitStack() as stack:
        target = Target(server.ingest, server.url, name)
        (attacker,) = stack.enter_context(workers(run_attack, [target]))
        assert attacker.receive() == "ready"  # it may have measured something before
        with workers(work, [Place(server.ingest, server.url, RUN)]) as (honest,):
            assert honest.receive() == "ready"
            time.sleep(quiet_s)
            row = Row(name, _times(honest))
            attacker.tell("go")
            time.sleep(attack_s)
            refusal = newcomer(server.ingest, "newcomer", min(PATIENCE_S, 3 * attack_s))
            row.during, row.memory_mb = _times(honest), server.rss_mb
            attacker.tell("stop")
            outcome: Outcome = attacker.receive()
            honest.tell(None)
            told: Told = honest.receive()
        if refusal:
            row.wrongs.append(f"a newcomer was not taken in: {refusal}")
        row.refused += outcome.refused
        row.notes += outcome.notes
        row.wrongs += [*outcome.wrongs, *_told_wrongs(told)]
        row.wrongs += _health_wrongs(server, told)
        row.refused += _counted(server)
        server.stop(signal.SIGKILL)
        log = server.errors
        row.log_lines = len(log.splitlines())
        row.disk_mb = (_size(server.directory) + len(log)) / 1e6
        row.wrongs += _log_wrongs(server, told)
    return row


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir())


def _times(honest: Worker) -> Times:
    honest.tell("cut")
    times: Times = honest.receive()
    return times


def _told_wrongs(told: Told) -> Iterator[str]:
    if told.refused:
        yield f"the sender was refused: {told.refused}"
    if told.unanswered:
        yield f"{told.unanswered} requests for /health failed"


def _health_wrongs(server: Aggregator, told: Told) -> Iterator[str]:
    """Ask once the flood is over what the aggregator has, and lost, of the honest run."""
    deadline = time.monotonic() + PATIENCE_S
    report = server.find(f"/runs/{RUN}/health")
    while report and report["phase"] != "ended" and time.monotonic() < deadline:
        time.sleep(0.1)
        report = server.find(f"/runs/{RUN}/health")
    if report is None:
        yield "the run is not known any more"
        return
    records = report["records"]
    if (records["stored"], records["lost"]) != (told.produced, 0):
        yield f"of {told.produced} records {records['stored']} stored, {records['lost']} lost"
    if report["alerts"]["firing"]:
        yield f"{report['alerts']['firing']} alerts of the honest run"


def _log_wrongs(server: Aggregator, told: Told) -> Iterator[str]:
    kept = sum(
        count
        for (session, _), count in logged(server.directory).items()
        if session in told.sessions
    )
    if kept < told.produced:
        yield f"{told.produced - kept} of {told.produced} records trimmed from the log"


def _counted(server: Aggregator) -> Refused:
    """Return what the aggregator itself counted as refused, by kind or budget."""
    pattern = r'^gradwatch_(?:budget_)?refused_total\{\w+="([^"]+)"\} ([0-9.e+]+)$'
    found = re.findall(pattern, server.get("/metrics").text, re.MULTILINE)
    return Counter({f"counted as {kind}": int(float(count)) for kind, count in found})


def _quiet(rows: Sequence[Row]) -> Times:
    return Times(
        [time_ms for row in rows for time_ms in row.quiet.acked],
        [time_ms for row in rows for time_ms in row.quiet.answered],
    )


def _cells(times: Times, quiet: Times) -> list[str]:
    """Return p50 and p99 of acknowledgements and answers, each with its ratio to quiet."""
    cells = []
    for own, base in ((times.acked, quiet.acked), (times.answered, quiet.answered)):
        for share in SHARES:
            value = quantile(own, share)
            cells.append(f"{value:.1f} ({value / quantile(base, share):.1f})")
    return cells


def _line(row: Row, quiet: Times) -> list[str]:
    rest = [f"{row.memory_mb:.0f}", f"{row.disk_mb:.1f}", f"{row.log_lines:,}"]
    return [row.name, *_cells(row.during, quiet), *rest]


def _verdict(row: Row) -> str:
    return "; ".join(row.wrongs) or "nothing honest refused, lost or trimmed"


def _notes(rows: Sequence[Row], attack_s: float) -> list[str]:
    about = (
        "An honest run of 8 ranks of 20 records/s each, and a reader of /health, 20/s, "
        f"beside {attack_s:g} s of each attack, whose process is niced but for the last two. "
        "Times are from when each was due; in brackets by those beside nothing. Aim: p99 at most "
        f"{MAX_RATIO:g} times quiet and {MAX_P99_MS:g} ms, memory {MAX_MEMORY_MB:,.0f} MB, nothing "
        "honest refused, lost or trimmed; beside half of the capacity p99 of /health "
        f"{MAX_HALF_P99_MS:g} ms."
    )
    notes = [about, f"The log is bounded to 64 MiB, `ulimit -n` {USUAL_FILES:,}."]
    notes += [f"{row.name}: {ATTACKS[row.name].summary}" for row in rows]
    notes += [f"Measured, {row.name}: {told}." for row in rows for told in row.notes]
    notes += [f"Refused, {row.name}: {_listed(row.refused)}." for row in rows if +row.refused]
    notes += [f"Wrong, {row.name}: {_verdict(row)}." for row in rows if row.wrongs]
    return notes


def _listed(refused: Refused) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in (+refused).most_common())
