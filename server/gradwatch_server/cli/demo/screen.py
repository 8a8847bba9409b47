"""Terminal of the demo."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradwatch_server.cli.demo.acts import (
    ACTS,
    MOST_STEPS_LATE,
    RUN,
    STEPS,
    Act,
    act_of,
    on_ranks,
)
from gradwatch_server.cli.demo.processes import GRADWATCH, Aggregator, environment
from gradwatch_server.cli.demo.story import Step, Story, ToldAlert
from gradwatch_server.errors import GradwatchError

WIDTH: Final = 79

console = Console(highlight=False, markup=False, emoji=False)


def show(what: RenderableType) -> None:
    """Print without the blanks that rich fills lines with."""
    with console.capture() as capture:
        console.print(what, width=WIDTH)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()), flush=True)


def show_step(step: Step) -> None:
    """Print every twentieth step, and each of the first few after a fault."""
    act = act_of(step.number)
    since = step.number - act.first
    soon = act.rule is not None and since <= MOST_STEPS_LATE
    if since == 0:
        show(Text.assemble((f"\nAct {act.name}. ", "bold"), act.story))
    if soon or since % 20 == 0 or step.number == STEPS - 1:
        note = "" if math.isfinite(step.norm) else "   step skipped"
        line = f"  step {step.number:4d}   loss {step.loss:9.4g}   norm {step.norm:9.3g}{note}"
        show(line)


def show_alert(alert: ToldAlert) -> None:
    """Print an alert where it arrives between the steps."""
    title = ("resolved", "bold green")
    if alert.state == "firing":
        title = (f"{alert.severity} {alert.rule}", "bold red")
    show(Padding(Text.assemble(title, ": ", alert.message), (0, 0, 0, 4)))


def show_health(aggregator: Aggregator) -> None:
    """Let the `gradwatch` command ask for the run's health over HTTP, as a user would."""
    arguments = ["health", RUN, "--url", aggregator.url]
    show(Text.assemble("\n", (f"$ gradwatch {' '.join(arguments)}", "bold")))
    try:  # in colour: a viewer without colours drops them
        colourful = environment(COLUMNS=WIDTH, FORCE_COLOR=1, TERM="xterm-256color")
        said = subprocess.check_output([*GRADWATCH, *arguments], env=colourful, text=True)
    except subprocess.CalledProcessError as error:
        msg = f"gradwatch health ended with exit code {error.returncode}"
        raise GradwatchError(msg) from error
    show(Text.from_ansi(said.rstrip()))


def show_verdict(story: Story) -> None:
    """Print what was injected beside what gradwatch said."""
    table = Table("act", "injected", "gradwatch said", "alert came after", box=box.SIMPLE_HEAD)
    table.pad_edge = False
    for act in ACTS:
        where = f"\nstep {act.first}, {on_ranks(act.ranks)}" if act.rule else ""
        table.add_row(act.name, act.fault + where, *answer(act, story))
    show(table)


def answer(act: Act, story: Story) -> tuple[str, str]:
    """Return what the first alert of an act said and how late it was."""
    for alert in story.fired(act):
        several = "the loss or the forward pass" if alert.origin.bad_loss else alert.extent
        layer = alert.origin.layer or several
        where = f"step {alert.first_step}, {on_ranks(alert.origin.ranks)}"
        steps, seconds = story.steps_late(act, alert), story.seconds_late(act, alert)
        late = f"{steps} step{'s' if steps != 1 else ''}\n{seconds:.2f} s"
        return f"{alert.rule} in {layer}\n{where}", late
    return "nothing", ""


def show_places(aggregator: Aggregator, folder: Path, *, keep: bool) -> None:
    """Say where to look, and how to end what is left running."""
    stops = "stops now; with --keep it stays up to look at"
    if keep:
        show(f"The page is at {aggregator.url}/?run={RUN}")
    show(f"The aggregator {'stays up. Look also at' if keep else stops}:")
    for path in (f"runs/{RUN}/health", "alerts?after=0", "alerts/stream"):
        show(f"  {aggregator.url}/{path}")
    show(f"  gradwatch tail --after 0 --url {aggregator.url}")
    if keep:
        show(f"Stop it with: kill {aggregator.pid}")
        show(f"Its data and the logs are in {folder}")
