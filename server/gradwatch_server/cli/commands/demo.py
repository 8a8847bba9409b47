"""`gradwatch demo`: trains a small model, breaks it twice, and shows what gradwatch says."""

from __future__ import annotations

import shutil
import signal
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

from gradwatch_server.cli.app import FLAG
from gradwatch_server.cli.client import follow_alerts
from gradwatch_server.cli.demo import screen
from gradwatch_server.cli.demo.acts import ACTS, STEPS, WORLD
from gradwatch_server.cli.demo.processes import ENDING, Aggregator, Process, are_over, start_ranks
from gradwatch_server.cli.demo.story import Step, Story, ToldAlert, find_fault, read_steps
from gradwatch_server.errors import GradwatchError

TIMEOUT_S: Final = 240.0

Inbox: TypeAlias = "Queue[Step | ToldAlert | GradwatchError]"


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
    screen.show(f"\ngradwatch was right in all three acts. {took_s:.0f} s in all.")


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
    screen.show(f"aggregator  {aggregator.url}, records come in at {aggregator.endpoint}")
    screen.show(
        f"training    a small transformer on Python's own sources, DDP in {WORLD} processes"
    )
    inbox: Inbox = Queue()
    alerts = (ToldAlert.model_validate(event) for event in follow_alerts(aggregator.url, None, 0))
    _pass_on(alerts, inbox)
    with ExitStack() as training:
        ranks = start_ranks(training, folder, aggregator.endpoint, seed)
        _pass_on(read_steps(ranks[0].stdout or ()), inbox)
        story = _watch(ranks, aggregator, inbox)
    screen.show_health(aggregator)
    screen.show_verdict(story)
    screen.show_places(aggregator, folder, keep=keep)
    if keep:
        stack.pop_all()
    faults = {act.name: find_fault(act, story) for act in ACTS}
    if wrong := [f"act {name}: {fault}" for name, fault in faults.items() if fault]:
        msg = f"gradwatch was wrong: {'; '.join(wrong)}"
        raise GradwatchError(msg)
    return aggregator.url


def _pass_on(items: Iterable[Step | ToldAlert], inbox: Inbox) -> None:
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
            screen.show_step(item)
        case ToldAlert():
            story.alerts.append(item)
            screen.show_alert(item)
        case GradwatchError():
            aggregator.check(timeout_s=1.0)  # if it died, that tells more
            raise item


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    """End the demo, and with it all it started; a second signal does not disturb that."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)
