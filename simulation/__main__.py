"""`scripts/simulate --seeds N` runs N seeds; `--seed S` runs one and prints its trace."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from simulation.simulate import Outcome, simulate

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 300,
    first: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    seed: Annotated[int, typer.Option(min=-1, help="Run this one, and print its trace.")] = -1,
) -> None:
    """Simulate clusters and check that nothing is lost, nothing doubled, nothing forgotten."""
    if seed >= 0:
        outcome = simulate(seed)
        print(outcome.trace)
        print(_verdict(outcome))
        raise typer.Exit(outcome.violation is not None)
    began_s, made, stored, lost, boots = time.monotonic(), 0, 0, 0, 0
    for number in range(first, first + seeds):
        outcome = simulate(number)
        if outcome.violation is not None:
            print(outcome.trace)
            print(_verdict(outcome))
            print(f"again: scripts/simulate --seed {number}")
            raise typer.Exit(1)
        made, stored, lost = made + outcome.made, stored + outcome.stored, lost + outcome.lost
        boots += outcome.boots
        if sys.stderr.isatty() and number % 50 == 49:
            print(f"\r{number + 1 - first} seeds", end="", file=sys.stderr, flush=True)
    took_s = time.monotonic() - began_s
    print(
        f"{seeds} seeds kept every promise, {seeds / took_s:.0f} seeds/s: {made} records made, "
        f"{stored} stored, {lost} declared lost, {boots} starts of the aggregator"
    )


def _verdict(outcome: Outcome) -> str:
    if outcome.violation is None:
        return f"seed {outcome.seed} kept every promise"
    return f"seed {outcome.seed} broke one: {outcome.violation}"


if __name__ == "__main__":
    app(prog_name="scripts/simulate")
