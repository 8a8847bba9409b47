"""`gradwatch demo`: trains a small model, breaks it twice, and shows what gradwatch says."""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import FrameType
from typing import Annotated, Final, NoReturn, TypeAlias

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradwatch_server.cli.app import FLAG
from gradwatch_server.cli.client import follow_alerts
from gradwatch_server.cli.demo.acts import (
    ACTS,
    MOST_STEPS_LATE,
    RUN,
    STEPS,
    WORLD,
    Act,
    act_of,
    on_ranks,
)
from gradwatch_server.cli.demo.processes import (
    ENDING,
    GRADWATCH,
    Aggregator,
    Process,
    are_over,
    environment,
    start_ranks,
)
from gradwatch_server.cli.demo.story import DemoAlert, Step, Story, find_fault, read_steps
from gradwatch_server.errors import GradwatchError

TIMEOUT_S: Final = 240.0

Inbox: TypeAlias = "Queue[Step | DemoAlert | GradwatchError]"


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", metavar=FLAG, help="Leave the aggregator up, with its data.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Another model, and another order of the text.")] = 0,
) -> None:
    """Train a small model in two processes, break it twice, and show what gradwatch says.

    Exit codes: 0 gradwatch was right and in time, 1 it was not or something failed, 128 + the
    signal's number if interrupted.
    """
    if find_spec("torch") is None:
        msg = "the demo trains with torch, which is missing; run: pip install 'gradwatch[client]'"
        raise GradwatchError(msg)
    for number in ENDING:
        signal.signal(number, _interrupt)
    began_s = time.monotonic()
    try:
        with ExitStack() as stack:
            perform(stack, seed=seed, keep=keep)
    except SystemExit:
        print("gradwatch: interrupted; all that the demo started is stopped", file=sys.stderr)
        raise
    took_s = time.monotonic() - began_s
    show(f"\ngradwatch was right in all three acts. {took_s:.0f} s in all.")


def perform(stack: ExitStack, *, seed: int, keep: bool) -> str:
    """Run the demo; *stack* ends what it started, unless that is to be kept.

    Returns:
        The address of its aggregator.

    Raises:
        GradwatchError: If gradwatch was wrong, or something failed.
    """
    folder = Path(tempfile.mkdtemp(prefix="gradwatch-demo-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    aggregator = Aggregator(stack, folder)
    show(f"aggregator  {aggregator.url}, records come in at {aggregator.endpoint}")
    show(f"training    a small transformer on Python's own sources, DDP in {WORLD} processes")
    inbox: Inbox = Queue()
    alerts = (DemoAlert.model_validate(event) for event in follow_alerts(aggregator.url, None, 0))
    _pass_on(alerts, inbox)
    with ExitStack() as training:
        ranks = start_ranks(training, folder, aggregator.endpoint, seed)
        _pass_on(read_steps(ranks[0].stdout or ()), inbox)
        story = _watch(ranks, aggregator, inbox)
    show_health(aggregator)
    show_verdict(story)
    show_places(aggregator, folder, keep=keep)
    if keep:
        stack.pop_all()
    faults = {act.name: find_fault(act, story) for act in ACTS}
    if wrong := [f"act {name}: {fault}" for name, fault in faults.items() if fault]:
        msg = f"gradwatch was wrong: {'; '.join(wrong)}"
        raise GradwatchError(msg)
    return aggregator.url


def _pass_on(items: Iterable[Step | DemoAlert], inbox: Inbox) -> None:
    """Put what comes into the inbox, from a thread of its own."""

    def work() -> None:
        try:
            for item in items:
                inbox.put(item)
        except GradwatchError as error:
            inbox.put(error)

    Thread(target=work, daemon=True).start()


def _watch(ranks: list[Process], aggregator: Aggregator, inbox: Inbox) -> Story:
    """Print what happens until training is over and the stream has sent all its alerts."""
    story = Story()
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (
        are_over(ranks) and story.last_step == STEPS - 1 and aggregator.is_finished(story.cursor)
    ):
        aggregator.check()
        _take(aggregator, inbox, story)
        if time.monotonic() > give_up_s:
            where = f"at step {story.last_step} and alert event {story.cursor}"
            msg = f"training and its alerts did not end in {TIMEOUT_S:g} s; they are {where}"
            raise GradwatchError(msg)
    return story


def _take(aggregator: Aggregator, inbox: Inbox, story: Story) -> None:
    """Wait a moment for something to happen, note it, print it."""
    try:
        item = inbox.get(timeout=0.1)
    except Empty:
        return
    match item:
        case Step():
            story.steps[item.number] = item
            show_step(item)
        case DemoAlert():
            story.alerts.append(item)
            show_alert(item)
        case GradwatchError():
            aggregator.check(timeout_s=1.0)  # if it died, that tells more
            raise item


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    """End the demo, and with it all it started; a second signal does not disturb that."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


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


def show_alert(alert: DemoAlert) -> None:
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
