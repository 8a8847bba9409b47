"""Trains a small model in two processes, breaks it twice, and shows what gradwatch says.

Run it as `scripts/demo`. Exit codes: 0 gradwatch was right and in time, 1 it was not or something
failed, 128 + the signal's number if interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import FrameType
from typing import Final, NoReturn

from demonstration import screen
from demonstration.acts import ACTS, STEPS, WORLD
from demonstration.processes import Aggregator, DemoError, Process, are_over, start_ranks
from demonstration.stream import Alert, Inbox, Step, read_alerts, read_steps
from demonstration.verdict import Story, find_fault

TIMEOUT_S: Final = 240.0
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def perform(stack: ExitStack, *, seed: int, keep: bool) -> str:
    """Run the demo; *stack* ends what it started, unless that is to be kept.

    Returns:
        The address of its aggregator.

    Raises:
        DemoError: If gradwatch was wrong, or something failed.
    """
    folder = Path(tempfile.mkdtemp(prefix="gradwatch-demo-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    aggregator = Aggregator(stack, folder)
    screen.show(f"aggregator  {aggregator.url}, records come in at {aggregator.endpoint}")
    screen.show(
        f"training    a small transformer on Python's own sources, DDP in {WORLD} processes"
    )
    inbox: Inbox = Queue()
    alerts = f"{aggregator.url}/alerts/stream"
    Thread(target=read_alerts, args=(alerts, inbox), daemon=True).start()
    with ExitStack() as training:
        ranks = start_ranks(training, folder, aggregator.endpoint, seed)
        Thread(target=read_steps, args=(ranks[0].stdout, inbox), daemon=True).start()
        story = watch(ranks, aggregator, inbox)
    screen.show_health(aggregator)
    screen.show_verdict(story)
    screen.show_places(aggregator, folder, keep=keep)
    if keep:
        stack.pop_all()
    faults = {act.name: find_fault(act, story) for act in ACTS}
    if wrong := [f"act {name}: {fault}" for name, fault in faults.items() if fault]:
        msg = f"gradwatch was wrong: {'; '.join(wrong)}"
        raise DemoError(msg)
    return aggregator.url


def watch(ranks: list[Process], aggregator: Aggregator, inbox: Inbox) -> Story:
    """Print what happens until training is over and the stream has sent all its alerts."""
    story = Story()
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (
        are_over(ranks) and story.last_step == STEPS - 1 and aggregator.is_finished(story.cursor)
    ):
        aggregator.check()
        take(aggregator, inbox, story)
        if time.monotonic() > give_up_s:
            where = f"at step {story.last_step} and alert event {story.cursor}"
            msg = f"training and its alerts did not end in {TIMEOUT_S:g} s; they are {where}"
            raise DemoError(msg)
    return story


def take(aggregator: Aggregator, inbox: Inbox, story: Story) -> None:
    """Wait a moment for something to happen, note it, print it."""
    try:
        item = inbox.get(timeout=0.1)
    except Empty:
        return
    match item:
        case Step():
            story.steps[item.number] = item
            screen.show_step(item)
        case Alert():
            story.alerts.append(item)
            screen.show_alert(item)
        case why:
            aggregator.check(timeout_s=1.0)  # if it died, that tells more
            msg = f"the alert stream ended: {why}"
            raise DemoError(msg)


def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    """End the demo, and with it all it started; a second signal does not disturb that."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> int:
    """Run the demo; return the exit code."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="scripts/demo", description=about)
    parser.add_argument(
        "--keep", action="store_true", help="leave the aggregator up, and its data and logs"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write act two as SVG")
    parser.add_argument("--seed", type=int, default=0, help="another model, another order of text")
    given = parser.parse_args()
    for number in ENDING:
        signal.signal(number, interrupt)
    began_s = time.monotonic()
    try:
        with ExitStack() as stack:
            perform(stack, seed=given.seed, keep=given.keep)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except SystemExit:
        print("demo: interrupted; all that it started is stopped", file=sys.stderr)
        raise
    if given.picture is not None:
        screen.picture.write(given.picture)
    took_s = time.monotonic() - began_s
    screen.show(f"\ngradwatch was right in all three acts. {took_s:.0f} s in all.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
