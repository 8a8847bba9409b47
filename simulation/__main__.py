"""`scripts/simulate --seeds N` runs N seeds; `--seed S` runs one and prints its trace."""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Annotated, Final

import typer

from simulation.crowd import RECORD_BYTES, Crowd
from simulation.simulate import Outcome, simulate

CHUNK: Final = 10
"""Seeds that a process takes at once."""

NUM_IDLE: Final = 64
QUEUE_BYTES: Final = 56 << 20
RATE_BYTES: Final = 300e6
ROUND_TRIP_S: Final = 0.01


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 300,
    first: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that share them.")] = 1,
    seed: Annotated[int, typer.Option(min=-1, help="Run this one, and print its trace.")] = -1,
    *,
    long: Annotated[bool, typer.Option("--long", help="Let them train for longer.")] = False,
    crowd: Annotated[
        int, typer.Option(min=0, help="Sessions with a backlog each, in place of seeds.")
    ] = 0,
    backlog_mib: Annotated[
        float, typer.Option(min=0.1, help="Size of a backlog of --crowd.")
    ] = 1.0,
    record_bytes: Annotated[
        int, typer.Option(min=1000, max=1 << 20, help="Size of a record of --crowd.")
    ] = RECORD_BYTES,
) -> None:
    """Simulate clusters and check that nothing is lost, nothing doubled, nothing forgotten.

    Each seed that breaks a promise is printed with what happened last; then the exit code is 1.
    """
    if crowd:
        _run_crowd(crowd, backlog_mib, record_bytes)
        return
    run = functools.partial(simulate, is_long=long)
    again = "scripts/simulate" + " --long" * long
    if seed >= 0:
        outcome = run(seed)
        print(outcome.trace)
        print(_verdict(outcome))
        raise typer.Exit(outcome.violation is not None)
    began_s, counts, broken = time.monotonic(), Counter[str](), []
    numbers = range(first, first + seeds)
    outcomes = map(run, numbers) if jobs == 1 else _share(run, numbers, jobs)
    for count, outcome in enumerate(outcomes, 1):
        if outcome.violation is not None:
            print(outcome.trace)
            print(_verdict(outcome))
            print(f"again: {again} --seed {outcome.seed}", flush=True)
            broken.append(outcome.seed)
        counts.update(outcome.counts)
        if sys.stderr.isatty() and count % 50 == 0:
            print(f"\r{count} seeds", end="", file=sys.stderr, flush=True)
    if broken:
        print(f"{len(broken)} of {seeds} seeds broke a promise: {', '.join(map(str, broken))}")
        raise typer.Exit(1)
    took_s = time.monotonic() - began_s
    told = ", ".join(f"{number} {what}" for what, number in counts.items())
    print(f"{seeds} seeds kept every promise, {seeds / took_s:.0f} seeds/s: {told}")


def _run_crowd(sessions: int, backlog_mib: float, record_bytes: int) -> None:
    """Print what becomes of sessions that all have a backlog, and of a few idle ones beside."""
    records = max(1, round(backlog_mib * (1 << 20) / record_bytes))
    backlogs = [records] * sessions + [0] * NUM_IDLE
    found = Crowd(backlogs, QUEUE_BYTES, RATE_BYTES, ROUND_TRIP_S, record_bytes).run()
    print(
        f"{sessions} sessions of {records} records, queue {QUEUE_BYTES >> 20} MiB, "
        f"{RATE_BYTES / 1e6:g} MB/s: {found.num_again} sent again, "
        f"{found.num_dropped} dropped, all stored after {found.seconds:.1f} s, last/first "
        f"{found.finish_ratio:.3f}, idle session p99 {1e3 * found.idle_p99_s:.0f} ms, at most "
        f"{found.most_granted:.0%} of the queue granted"
    )


def _share(run: Callable[[int], Outcome], numbers: Iterable[int], jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes in order; several processes run the seeds."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, numbers, chunksize=CHUNK)


def _verdict(outcome: Outcome) -> str:
    if outcome.violation is None:
        return f"seed {outcome.seed} kept every promise"
    return f"seed {outcome.seed} broke one: {outcome.violation}"


if __name__ == "__main__":
    app(prog_name="scripts/simulate")
