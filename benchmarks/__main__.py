"""`scripts/bench NAME` runs one benchmark; without a name it lists them.

Each benchmark is a module that is loaded only when it runs: some need torch, some must not have it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.report import console

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Quick = Annotated[
    bool, typer.Option("--quick", help="A smoke test of seconds; its numbers mean nothing.")
]
Rounds = Annotated[int, typer.Option(min=1, help="How often each variant is measured.")]


@app.callback(invoke_without_command=True)
def main(context: typer.Context) -> None:
    """Measure what gradwatch does and costs, each time beside a peer in the same run."""
    if context.invoked_subcommand is not None:
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for command in app.registered_commands:
        assert command.callback is not None
        doc = command.callback.__doc__ or ""
        table.add_row(command.name or command.callback.__name__, doc.partition("\n")[0])
    console.print("scripts/bench NAME [--quick] [options]\n", markup=False, highlight=False)
    console.print(table)


@app.command()
def ingest(
    quick: Quick = False,
    records: Annotated[int, typer.Option(min=100, help="Records in one pass.")] = 24_000,
    rounds: Rounds = 5,
) -> None:
    """Records/s of the whole durable path, beside a loop that only receives and unpacks."""
    _run("ingest", quick=quick, records=records, rounds=rounds)


@app.command()
def latency(
    quick: Quick = False,
    alerts: Annotated[int, typer.Option(min=10, help="Alerts to wait for.")] = 400,
    rate: Annotated[float, typer.Option(min=1.0, help="Records per second.")] = 200.0,
) -> None:
    """Milliseconds from collect() in a trainer to the alert on a server-sent event stream."""
    _run("latency", quick=quick, alerts=alerts, rate=rate)


@app.command()
def notify(
    quick: Quick = False,
    alerts: Annotated[int, typer.Option(min=10, help="Alerts to wait for.")] = 200,
    rate: Annotated[float, typer.Option(min=1.0, help="Records per second.")] = 100.0,
) -> None:
    """Milliseconds from collect() to a webhook, also beside one that hangs; 1,000 at once."""
    _run("notify", quick=quick, alerts=alerts, rate=rate)


@app.command()
def step(
    quick: Quick = False,
    steps: Annotated[int, typer.Option(min=2, help="Steps in one block.")] = 60,
    rounds: Rounds = 6,
) -> None:
    """A training step with the aggregator alive, dead, killed and stopped, beside one without."""
    _run("step", quick=quick, steps=steps, rounds=rounds)


@app.command()
def activations(
    quick: Quick = False,
    rounds: Annotated[int, typer.Option(min=10, help="Steps of each variant.")] = 300,
) -> None:
    """What attach(activations=...) adds to a training step, beside the same watch without it."""
    _run("activations", quick=quick, rounds=rounds)


@app.command()
def footprint(quick: Quick = False, rounds: Rounds = 9) -> None:
    """Import time and memory on top of torch's; start and memory of an idle aggregator."""
    _run("footprint", quick=quick, rounds=rounds)


@app.command()
def client(quick: Quick = False, rounds: Rounds = 11) -> None:
    """The client's numbers beside one read of the gradients and what people use today; DDP."""
    _run("client", quick=quick, rounds=rounds)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def gpu(context: typer.Context) -> None:
    """All that only a GPU can show, in eleven stages: `gpu --help`, and docs/gpu.md."""
    # `scripts/bench` runs it without what this module imports, where there is a GPU.
    command = [sys.executable, "-m", "benchmarks.gpu_session", *context.args]
    sys.exit(subprocess.run(command, check=False).returncode)


@app.command()
def reliability(
    quick: Quick = False,
    records: Annotated[int, typer.Option(min=1000, help="For the memory of both.")] = 1_000_000,
) -> None:
    """Lost, doubled, recovered: faults with real processes; the call and the memory besides."""
    _run("reliability", quick=quick, records=records)


@app.command()
def fairness(
    quick: Quick = False,
    only: Annotated[str, typer.Option(help="Attacks whose name contains this.")] = "",
    write: Annotated[bool, typer.Option("--write", help="Put the table into docs/.")] = False,
) -> None:
    """What one peer can do to another: an honest one alone, and beside each attack."""
    _run("fairness", quick=quick, only=only, write=write)


@app.command()
def recovery(
    quick: Quick = False,
    rounds: Rounds = 5,
    runs: Annotated[int, typer.Option(min=1, help="Runs, each with a full window.")] = 100,
) -> None:
    """Seconds until a killed aggregator is ready again, beside the start of an empty one."""
    _run("recovery", quick=quick, rounds=rounds, runs=runs)


@app.command()
def export(
    quick: Quick = False,
    steps: Annotated[int, typer.Option(min=64, help="Steps of the run.")] = 10_000,
    layers: Annotated[int, typer.Option(min=1, help="Layers of it.")] = 1_000,
    only: Annotated[str, typer.Option(help="Formats whose name contains this.")] = "",
) -> None:
    """Exports of a long run: rows per second, memory and size of each format."""
    _run("export", quick=quick, steps=steps, layers=layers, only=only)


@app.command()
def page(
    quick: Quick = False,
    rounds: Rounds = 9,
    write: Annotated[bool, typer.Option("--write", help="Put the table into docs/.")] = False,
) -> None:
    """The page in Chromium: time to its first picture, bytes, frames while a run is followed."""
    _run("page", quick=quick, rounds=rounds, write=write)


@app.command()
def loops(
    only: Annotated[str, typer.Option(help="Loops whose name contains this.")] = "",
    write: Annotated[bool, typer.Option("--write", help="Put the table into docs/.")] = False,
) -> None:
    """Training loops run for real: what gradwatch says of each, beside what is true."""
    _run("loops.table", only=only, write=write)


@app.command()
def alerts(
    directory: Annotated[
        Path, typer.Option(help="Where the recorded runs are, or will be.")
    ] = Path(".venv/alerts"),
    only: Annotated[str, typer.Option(help="Workloads whose name contains this.")] = "",
    quick: Quick = False,
    judge_only: Annotated[
        bool, typer.Option("--judge-only", help="Make no runs: judge those that are there.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Put the tables into docs/.")] = False,
) -> None:
    """Rules beside those that people use today, over labelled trainings, which it makes first."""
    _run(
        "alerts.evaluate",
        directory=directory,
        only=only,
        quick=quick,
        judge_only=judge_only,
        write=write,
    )


def _run(name: str, **options: float | str | Path | None) -> None:
    with console.status(name):  # minutes may pass; shown on a terminal only
        import_module(f"benchmarks.{name}").run(**options)


if __name__ == "__main__":
    # So that children are ended and scratch directories removed on SIGTERM as on ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app()
