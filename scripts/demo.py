"""Trains a small model in two processes, breaks it twice, and shows what gradwatch says.

Run it as `scripts/demo`. Exit codes: 0 gradwatch was right and in time, 1 it was not or something
failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from types import FrameType
from typing import Any, Final, NoReturn, TypeAlias

import httpx
import httpx_sse
from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parent.parent
EXAMPLE: Final = ROOT / "docs" / "examples" / "train_ddp.py"
GRADWATCH: Final = Path(sys.executable).with_name("gradwatch")
SHORT: Final = GRADWATCH.relative_to(ROOT) if GRADWATCH.is_relative_to(ROOT) else GRADWATCH

RUN: Final = "demo"
WORLD: Final = 2
POISON_STEP: Final = 100
POISON_RANK: Final = 1
RAISE_STEP: Final = 150
RAISED_LR: Final = 1.0
STEPS: Final = 166
MOST_STEPS_LATE: Final = 5
SOON_S: Final = 0.3
"""An alert this soon after the fault is in time, however many steps a fast machine takes until
then. Six steps take longer on two ordinary cores."""

WIDTH: Final = 79

START_S: Final = 30.0
TRAINING_S: Final = 240.0
SETTLE_S: Final = 10.0
STOP_S: Final = 5.0

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

STEP: Final = re.compile(r"step +(\d+)  loss +(\S+)  norm +(\S+)")
ERROR: Final = re.compile(r"(\[rank\d+\]: )?(?P<error>[\w.]+(Error|Exception|Interrupt)\b.*)")
ECHO: Final = re.compile(r"gloo|Connection (closed|reset)|Broken pipe")

Alert: TypeAlias = dict[str, Any]
Process: TypeAlias = subprocess.Popen[str]

console = Console(highlight=False, markup=False, emoji=False)


class DemoError(Exception):
    """What a person has to know, in one sentence."""


# The three acts


@dataclass(frozen=True, slots=True)
class Act:
    """A stretch of the training run: the fault at its first step, and what has to follow.

    Args:
        name: `one`, `two` or `three`.
        first: Its first step.
        story: What happens, for the reader.
        fault: The same in a few words, for the table.
        ranks: Ranks that the fault is on.
        rule: Rule that has to fire, None if none may.
        shows_after: Steps until the fault is in a gradient.
    """

    name: str
    first: int
    story: str
    fault: str
    ranks: tuple[int, ...] = ()
    rule: str | None = None
    shows_after: range = range(1)


ACTS: Final = (
    Act("one", 0, "All is well. No alert may fire.", "nothing"),
    Act(
        "two",
        POISON_STEP,
        f"At step {POISON_STEP} rank {POISON_RANK} gets a batch of zero bytes. The loss masks all "
        "of it: its mean is 0/0, and DDP spreads the NaN to every rank.",
        "batch of zero bytes",
        (POISON_RANK,),
        "nonfinite",
    ),
    Act(
        "three",
        RAISE_STEP,
        f"From step {RAISE_STEP} on the learning rate is {RAISED_LR:g} on all ranks, 500 times "
        "what it was.",
        "learning rate x 500",
        tuple(range(WORLD)),
        "exploding",
        range(1, MOST_STEPS_LATE + 1),
    ),
)


def act_of(step: int) -> Act:
    """Return the act that a step belongs to."""
    return next(act for act in reversed(ACTS) if act.first <= step)


# What is seen


@dataclass(frozen=True, slots=True)
class Progress:
    """A line of rank 0: the step, its own loss, the gradient norm before clipping."""

    step: int
    loss: float
    norm: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """An event of the alert stream."""

    alert: Alert
    at_s: float


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The alert stream ended, and why."""

    why: str


Inbox: TypeAlias = "Queue[Progress | Heard | StreamEnded]"


@dataclass(slots=True)
class Story:
    """Everything seen so far."""

    steps: dict[int, Progress] = field(default_factory=dict)
    alerts: list[Heard] = field(default_factory=list)
    reached: dict[int, int] = field(default_factory=dict)  # cursor -> step that training was at

    @property
    def last_step(self) -> int:
        """The newest step of rank 0."""
        return max(self.steps, default=-1)

    @property
    def cursor(self) -> int:
        """The newest event of the stream."""
        return max(self.reached, default=0)

    def fired(self, act: Act) -> list[Heard]:
        """Return the alerts that began in an act, in the order in which they fired."""
        firing = [heard for heard in self.alerts if heard.alert["state"] == "firing"]
        return [heard for heard in firing if act_of(heard.alert["first_step"]) is act]

    def seconds_late(self, act: Act, heard: Heard) -> float:
        """Return the time to an alert from the end of the step before the act."""
        before = self.steps.get(act.first - 1)
        return heard.at_s - before.at_s if before else math.nan

    def steps_late(self, act: Act, heard: Heard) -> int:
        """Return the steps that training took from the fault until the alert was here."""
        fired, cursor = int(heard.alert["fired_step"]), heard.alert["cursor"]
        return max(fired, self.reached[cursor]) - act.first


# Processes


def start(
    stack: ExitStack,
    command: Sequence[object],
    environ: Mapping[str, str],
    folder: Path,
    name: str,
) -> Process:
    """Start a process with its errors in `NAME.log`; *stack* ends it.

    It gets a session of its own: Ctrl-C reaches this script alone, which then ends the others.
    """
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env=dict(environ),
            start_new_session=True,
        )
    stack.callback(stop, process)
    return process


def stop(process: Process) -> None:
    """End a process, by force if it does not listen."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def clean_environment() -> dict[str, str]:
    """Return the environment without what would steer gradwatch elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GRADWATCH_")}


def last_words(log: Path) -> str:
    """Return the error in a log: the last line that looks like one, else the last line."""
    lines = list(filter(None, map(str.strip, log.read_text(errors="replace").splitlines())))
    errors = [found["error"] for line in lines if (found := ERROR.match(line))]
    return (errors or lines or ["it said nothing"])[-1]


def cause_of_death(process: Process, log: Path) -> str:
    """Return how a process ended and, if it ended by itself, what it said last."""
    code = process.wait()
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}: {last_words(log)}"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# The aggregator


@dataclass(frozen=True, slots=True)
class Aggregator:
    """A running `gradwatch serve`."""

    process: Process
    url: str
    endpoint: str

    def get(self, path: str) -> Any:
        """Ask it something over HTTP."""
        try:
            with httpx.Client(trust_env=False, timeout=10.0) as client:
                return client.get(self.url + path).raise_for_status().json()
        except httpx.HTTPError as error:
            msg = f"the aggregator did not answer GET {path}: {error}"
            raise DemoError(msg) from error


def start_aggregator(stack: ExitStack, folder: Path) -> Aggregator:
    """Start `gradwatch serve` on free ports; read from its output where it listens."""
    command: list[object] = [GRADWATCH, "serve"]
    command += ["--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0"]
    command += ["--data", folder / "data"]
    process = start(stack, command, clean_environment(), folder, "serve")
    patience = threading.Timer(START_S, process.kill)
    patience.daemon = True
    patience.start()
    said: dict[str, str] = {}
    for line in process.stdout or ():
        name, _, value = line.strip().partition(" ")
        said[name] = value.strip()
        if name == "data":
            break
    if "data" not in said:
        msg = f"the aggregator did not start, {cause_of_death(process, folder / 'serve.log')}"
        raise DemoError(msg)
    patience.cancel()
    return Aggregator(process, said["http"], said["ingest"])


def subscribe(aggregator: Aggregator, inbox: Inbox) -> None:
    """Follow the alert stream in a thread; return once the subscription stands."""
    open_ = threading.Event()

    def follow() -> None:
        why = "the aggregator closed it"
        try:
            with (
                httpx.Client(trust_env=False, timeout=httpx.Timeout(10.0, read=60.0)) as client,
                httpx_sse.connect_sse(client, "GET", aggregator.url + "/alerts/stream") as source,
            ):
                source.response.raise_for_status()
                open_.set()
                for event in source.iter_sse():
                    if event.data:  # not the id it begins with, nor a ping
                        inbox.put(Heard(event.json(), time.monotonic()))
        except (httpx.HTTPError, ValueError) as error:
            why = str(error)
        try:
            aggregator.process.wait(1.0)  # if it died, `check_aggregator` tells more
        except subprocess.TimeoutExpired:
            inbox.put(StreamEnded(why))

    threading.Thread(target=follow, daemon=True).start()
    if not open_.wait(SETTLE_S):
        msg = f"no alert stream at {aggregator.url}/alerts/stream"
        raise DemoError(msg)


# Training


def start_training(
    stack: ExitStack, aggregator: Aggregator, folder: Path, inbox: Inbox, seed: int
) -> list[Process]:
    """Start one process per rank, as torchrun would, and a thread that reads rank 0."""
    command: list[object] = [sys.executable, EXAMPLE, "--run", RUN]
    command += ["--steps", STEPS, "--seed", seed]
    command += ["--poison-step", POISON_STEP, "--poison-rank", POISON_RANK]
    command += ["--raise-lr-step", RAISE_STEP, "--raise-lr", RAISED_LR]
    common = clean_environment() | {
        "GRADWATCH_ENDPOINT": aggregator.endpoint,
        "WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "OMP_NUM_THREADS": "1",  # as torchrun sets it: more on few cores is many times slower
    }
    ranks = [
        start(stack, command, common | {"RANK": str(rank)}, folder, f"rank{rank}")
        for rank in range(WORLD)
    ]
    threading.Thread(target=read_steps, args=(ranks[0], inbox), daemon=True).start()
    return ranks


def read_steps(process: Process, inbox: Inbox) -> None:
    """Pass on what rank 0 prints."""
    for line in process.stdout or ():
        if match := STEP.match(line):
            step, loss, norm = match.groups()
            inbox.put(Progress(int(step), float(loss), float(norm), time.monotonic()))


def is_over(ranks: Sequence[Process], folder: Path) -> bool:
    """Tell whether all ranks have ended well.

    Raises:
        DemoError: If one failed. A rank that only lost its peer is not the one to name.
    """
    failed = [rank for rank, process in enumerate(ranks) if process.poll() not in (None, 0)]
    if failed:
        words = {rank: last_words(folder / f"rank{rank}.log") for rank in failed}
        first = min(failed, key=lambda rank: ECHO.search(words[rank]) is not None)
        how = cause_of_death(ranks[first], folder / f"rank{first}.log")
        msg = f"training failed on rank {first}, {how}"
        raise DemoError(msg)
    return all(process.poll() == 0 for process in ranks)


def watch(ranks: Sequence[Process], folder: Path, inbox: Inbox, aggregator: Aggregator) -> Story:
    """Print what happens until training is over and the stream has told everything."""
    story = Story()
    give_up_s = time.monotonic() + TRAINING_S
    while not (is_over(ranks, folder) and story.last_step == STEPS - 1):
        check_aggregator(aggregator, folder)
        take(inbox, story)
        if time.monotonic() > give_up_s:
            msg = f"training did not end in {TRAINING_S:g} s; it is at step {story.last_step}"
            raise DemoError(msg)
    settle_s = time.monotonic() + SETTLE_S
    while not has_ended(aggregator) or story.cursor < newest_cursor(aggregator):
        take(inbox, story)
        if time.monotonic() > settle_s:
            msg = f"the alert stream is behind: it gave {story.cursor} events, GET /alerts has more"
            raise DemoError(msg)
    return story


def check_aggregator(aggregator: Aggregator, folder: Path) -> None:
    """Raise if it has ended."""
    if aggregator.process.poll() is not None:
        how = cause_of_death(aggregator.process, folder / "serve.log")
        msg = f"the aggregator ended, {how}"
        raise DemoError(msg)


def take(inbox: Inbox, story: Story) -> None:
    """Wait a moment for something to happen, note it, print it."""
    try:
        item = inbox.get(timeout=0.1)
    except Empty:
        return
    match item:
        case Progress():
            story.steps[item.step] = item
            print_step(item)
        case Heard():
            story.alerts.append(item)
            story.reached[item.alert["cursor"]] = story.last_step
            print_alert(item.alert)
        case StreamEnded(why):
            msg = f"the alert stream ended: {why}"
            raise DemoError(msg)


def has_ended(aggregator: Aggregator) -> bool:
    """Tell whether the aggregator has heard the goodbye of all ranks."""
    ranks = aggregator.get(f"/runs/{RUN}/health")["ranks"]
    return all(rank["state"] == "ended" for rank in ranks)


def newest_cursor(aggregator: Aggregator) -> int:
    """Return the cursor of the last alert event that the aggregator has stored."""
    events = aggregator.get("/alerts?limit=1000")
    return int(events[-1]["cursor"]) if events else 0


# Judging


def find_fault(act: Act, story: Story) -> str | None:
    """Return in a sentence what gradwatch got wrong in an act, None if nothing."""
    fired = story.fired(act)
    if act.rule is None:
        return f"it raised a false alert: {fired[0].alert['message']}" if fired else None
    if not fired:
        return f"it raised no alert after the fault at step {act.first}"
    first = fired[0].alert
    if first["rule"] != act.rule:
        return f"it said {first['rule']} where {act.rule} was due: {first['message']}"
    if first["first_step"] - act.first not in act.shows_after:
        return f"it named step {first['first_step']} for the fault at step {act.first}"
    if tuple(first["origin"]["ranks"]) != act.ranks:
        return (
            f"it named {on_ranks(first['origin']['ranks'])} for the fault on {on_ranks(act.ranks)}"
        )
    if len(fired) > 1 and act is not ACTS[-1]:  # what explodes may go wrong in more than one way
        return f"it raised a false alert: {fired[1].alert['message']}"
    late = story.steps_late(act, fired[0])
    soon = story.seconds_late(act, fired[0]) <= SOON_S
    if first["fired_step"] - act.first > MOST_STEPS_LATE or (late > MOST_STEPS_LATE and not soon):
        return f"it was {late} steps late, at most {MOST_STEPS_LATE} are allowed"
    return None


# Printing


def show(what: RenderableType) -> None:
    """Print without the blanks that rich fills lines with."""
    with console.capture() as capture:
        console.print(what, width=WIDTH)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()), flush=True)


def print_step(progress: Progress) -> None:
    """Print every twentieth step, and each of the first few after a fault."""
    act = act_of(progress.step)
    since = progress.step - act.first
    if since == 0:
        show(Text.assemble((f"\nAct {act.name}. ", "bold"), act.story))
    soon = act.rule is not None and since <= MOST_STEPS_LATE
    if not soon and since % 20 and progress.step < STEPS - 1:
        return
    note = "" if math.isfinite(progress.norm) else "   step skipped"
    show(f"  step {progress.step:4d}   loss {progress.loss:9.4g}   norm {progress.norm:9.3g}{note}")


def print_alert(alert: Alert) -> None:
    """Print an alert where it arrives between the steps."""
    title = ("resolved", "bold green")
    if alert["state"] == "firing":
        title = (f"{alert['severity']} {alert['rule']}", "bold red")
    show(Padding(Text.assemble(title, ": ", alert["message"]), (0, 0, 0, 4)))


def print_verdict(story: Story) -> None:
    """Print what was injected beside what gradwatch said."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("act", "injected", "gradwatch said", "alert came after"):
        table.add_column(title)
    for act in ACTS:
        injected = act.fault
        if act.rule is not None:
            injected += f"\nstep {act.first}, {on_ranks(act.ranks)}"
        first = next(iter(story.fired(act)), None)
        said = ("nothing", "") if first is None else answer(act, story, first)
        table.add_row(act.name, injected, *said)
    show(table)


def answer(act: Act, story: Story, heard: Heard) -> tuple[str, str]:
    """Return what an alert said and how late it was, for the table."""
    alert = heard.alert
    layer = alert["origin"]["layer"] or "a layer not known"
    where = f"step {alert['first_step']}, {on_ranks(alert['origin']['ranks'])}"
    steps, seconds = story.steps_late(act, heard), story.seconds_late(act, heard)
    return f"{alert['rule']} in {layer}\n{where}", f"{steps} steps\n{seconds:.2f} s"


def on_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words."""
    if not ranks:
        return "rank not known"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def print_health(aggregator: Aggregator) -> None:
    """Let the `gradwatch` command ask for the run's health over HTTP, as a user would."""
    arguments = ["health", RUN, "--url", aggregator.url]
    show(Text.assemble("\n", (f"$ {SHORT} {shlex.join(arguments)}", "bold")))
    environ = clean_environment() | {"COLUMNS": str(WIDTH)}
    asked = subprocess.run(
        [GRADWATCH, *arguments], env=environ, text=True, stdout=subprocess.PIPE, check=False
    )
    if asked.returncode:
        msg = f"gradwatch health ended with exit code {asked.returncode}"
        raise DemoError(msg)
    show(Text(asked.stdout.rstrip()))


def print_places(aggregator: Aggregator, folder: Path, *, keep: bool) -> None:
    """Say where to look, and how to end what is left running."""
    if keep:
        show("The aggregator stays up. Look at:")
    else:
        show("The aggregator stops now; scripts/demo --keep leaves it up to look at:")
    show(f"  {aggregator.url}/runs/{RUN}/health")
    show(f"  {aggregator.url}/alerts?after=0")
    show(f"  {aggregator.url}/alerts/stream")
    show(f"  {SHORT} tail --after 0 --url {aggregator.url}")
    if keep:
        show(f"Stop it with: kill {aggregator.process.pid}")
        show(f"Its data and the logs are in {folder}")


# All of it


def perform(stack: ExitStack, *, seed: int, keep: bool) -> list[str]:
    """Run the demo; return what gradwatch got wrong, in sentences."""
    folder = Path(tempfile.mkdtemp(prefix="gradwatch-demo-"))
    if not keep:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
    aggregator = start_aggregator(stack, folder)
    inbox: Inbox = Queue()
    subscribe(aggregator, inbox)
    show(f"aggregator  {aggregator.url}, records come in at {aggregator.endpoint}")
    show(f"training    a small transformer on Python's own sources, DDP in {WORLD} processes")
    with ExitStack() as training:
        ranks = start_training(training, aggregator, folder, inbox, seed)
        story = watch(ranks, folder, inbox, aggregator)
    print_health(aggregator)
    print_verdict(story)
    print_places(aggregator, folder, keep=keep)
    if keep:
        stack.pop_all()
    faults = {act.name: find_fault(act, story) for act in ACTS}
    return [f"act {name}: {fault}" for name, fault in faults.items() if fault is not None]


def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    """End the script, and with it all it started; a second signal does not disturb that."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the aggregator up, and its data and logs"
    )
    parser.add_argument("--seed", type=int, default=0, help="another model, another order of text")
    given = parser.parse_args()
    for number in ENDING:
        signal.signal(number, interrupt)
    began_s = time.monotonic()
    try:
        with ExitStack() as stack:
            wrong = perform(stack, seed=given.seed, keep=given.keep)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except SystemExit:
        print("demo: interrupted; all that it started is stopped", file=sys.stderr)
        raise
    if wrong:
        print(f"demo: gradwatch was wrong: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    show(f"\ngradwatch was right in all three acts. {time.monotonic() - began_s:.0f} s in all.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
