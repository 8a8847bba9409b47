"""One kind of fault, again and again under trainings: what was produced, told, and waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.cluster_faults.arrivals import Differences, compare, longest_pause, longest_silence
from benchmarks.cluster_faults.faults import Fault
from benchmarks.cluster_faults.ground import Ground, make_ground, records_of
from benchmarks.cluster_faults.machines import Machines
from benchmarks.cluster_faults.reader import Reader
from benchmarks.cluster_faults.training import (
    AGAIN,
    PACE_S,
    STOP,
    Call,
    Trained,
    Training,
    train,
)
from benchmarks.harness import Worker, wait_until, workers

NUM_RUNS: Final = 3
PATIENCE_S: Final = 60.0
"""How long a cluster may take to be as before; if it takes longer, no further fault follows."""

COMPLETE_S: Final = 15.0
"""How long an alert may take that is stored."""

CALM_S: Final = 1.5
"""Between two faults."""


@dataclass(frozen=True, slots=True)
class Window:
    """One fault, from when it was inflicted until all was as before."""

    begin_s: float
    end_s: float


@dataclass(slots=True)
class Row:
    """What was measured of one kind of fault.

    Args:
        name: Of the kind.
        produced: Records that the trainings numbered.
        stored: Those that the cluster stored.
        lost: Those that it declares as lost.
        differences: How the alerts of each reader differ from those of the single process.
        pauses_s: Of each fault the longest time without an acknowledgement for a run.
        silences_s: Of each fault the longest time without an alert of a run, beyond its pace.
        quiet: Calls of `collect()` before the first fault.
        during: Those during one.
        wrongs: What went wrong besides.
    """

    name: str
    produced: int = 0
    stored: int = 0
    lost: int = 0
    differences: list[Differences] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    silences_s: list[float] = field(default_factory=list)
    quiet: list[Call] = field(default_factory=list)
    during: list[Call] = field(default_factory=list)
    wrongs: list[str] = field(default_factory=list)

    @property
    def times(self) -> int:
        """How often the fault was inflicted."""
        return len(self.pauses_s)

    @property
    def unaccounted(self) -> int:
        """Records that were produced, and are neither stored nor declared as lost."""
        return self.produced - self.stored - self.lost


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same for all kinds.

    Args:
        lease_s: The time of a node's lease.
        times: How often each is inflicted.
        quiet_s: How long nothing is done before.
        directory: Where the processes write.
    """

    lease_s: float
    times: int
    quiet_s: float
    directory: Path


def measure(fault: Fault, machines: Machines, plan: Plan) -> Row:
    """Inflict one kind of fault on a cluster of its own."""
    directory = plan.directory / fault.name.replace(" ", "-")
    with make_ground(machines, plan.lease_s, directory) as ground:
        return _Measurement(ground, fault, plan).measure()


class _Measurement:
    def __init__(self, ground: Ground, fault: Fault, plan: Plan) -> None:
        self._ground = ground
        self._fault = fault
        self._plan = plan
        self._row = Row(fault.name)
        self._runs = [f"faults-{number}" for number in range(NUM_RUNS)]
        self._windows: list[Window] = []

    def measure(self) -> Row:
        with _reading(self._ground) as (readers, single), self._training() as trainers:
            self._wait_for_alerts([*readers, single])
            quiet_from_s = time.monotonic()
            time.sleep(self._plan.quiet_s)
            quiet = Window(quiet_from_s, time.monotonic())
            self._suffer_all(trainers, readers)
            trained = self._end(trainers)
            self._count(trained)
            self._compare(readers, single)
        self._time(trained, readers, quiet)
        return self._row

    @contextmanager
    def _training(self) -> Iterator[list[Worker]]:
        endpoints, single = self._ground.endpoints, self._ground.single.ingest
        jobs = [
            Training(run, (*endpoints[number:], *endpoints[:number]), single)
            for number, run in enumerate(self._runs)
        ]
        with workers(train, jobs) as trainers:
            yield trainers

    def _suffer_all(self, trainers: list[Worker], readers: list[Reader]) -> None:
        for number in range(self._plan.times):
            begin_s = time.monotonic()
            try:
                self._suffer(number, trainers, readers)
            except (TimeoutError, AssertionError) as error:
                self._row.wrongs.append(f"after {number + 1} faults: {error}")
                self._row.wrongs += self._ground.describe()
            self._windows.append(Window(begin_s, time.monotonic()))
            if self._row.wrongs:
                return
            time.sleep(CALM_S)

    def _suffer(self, number: int, trainers: list[Worker], readers: list[Reader]) -> None:
        fault, run = self._fault, self._runs[number % NUM_RUNS]
        undo = fault.inflict(self._ground, run, number)
        for trainer in trainers:
            trainer.tell(AGAIN)
        try:
            time.sleep(fault.held_s + fault.leases * self._ground.lease_s)
            if fault.goes_on:
                self._wait_for_answers(trainers)
        finally:
            undo()
        if not fault.goes_on:
            self._wait_for_answers(trainers)
        self._ground.nats.wait_until_ready()
        self._ground.cluster.settle()
        self._wait_for_alerts(readers)

    def _wait_for_answers(self, trainers: list[Worker]) -> None:
        """Wait until each training had something acknowledged that it made since it was asked."""
        what = "each training to have a record acknowledged"
        wait_until(lambda: all(own.pipe.poll() for own in trainers), PATIENCE_S, what)
        for trainer in trainers:
            assert trainer.receive() == AGAIN

    def _wait_for_alerts(self, readers: list[Reader]) -> None:
        """Wait until each reader has got a further alert of each run."""
        begin_s = time.monotonic()

        def has_all(reader: Reader) -> bool:
            new = {own.run for own in list(reader.arrivals) if own.arrived_s > begin_s}
            return new.issuperset(self._runs)

        wait_until(lambda: all(map(has_all, readers)), PATIENCE_S, "alerts of all runs")

    def _end(self, trainers: list[Worker]) -> list[Trained]:
        for trainer in trainers:
            trainer.tell(STOP)
        trained = [_last_word(trainer) for trainer in trainers]
        for run, own in zip(self._runs, trained, strict=True):
            if own.left:
                self._row.wrongs.append(f"{own.left} records of {run} never acknowledged")
        return trained

    def _count(self, trained: list[Trained]) -> None:
        produced = {run: own.produced for run, own in zip(self._runs, trained, strict=True)}
        self._row.produced = sum(produced.values())
        try:
            self._ground.wait_until_accounted(produced)
        except TimeoutError as error:
            self._row.wrongs.append(str(error))
        node = next(iter(self._ground.cluster.nodes.values()))
        for run, own in zip(self._runs, trained, strict=True):
            found = records_of(node, run)
            self._row.stored += found.get("stored", 0)
            self._row.lost += found.get("lost", 0)
            single = records_of(self._ground.single, run)
            if (single["stored"], single["lost"]) != (own.produced_single, 0):
                self._row.wrongs.append(f"the single process lacks records of {run}")

    def _compare(self, readers: list[Reader], single: Reader) -> None:
        """Compare once nothing comes any more."""

        def is_complete() -> bool:
            found = [compare(list(single.arrivals), list(own.arrivals)) for own in readers]
            return not any(own.missing or own.other for own in found)

        with suppress(TimeoutError):  # what is missing is counted
            wait_until(is_complete, COMPLETE_S, "all alerts")
        time.sleep(CALM_S)  # for what comes twice
        self._row.differences = [compare(single.arrivals, own.arrivals) for own in readers]

    def _time(self, trained: list[Trained], readers: list[Reader], quiet: Window) -> None:
        calls = [call for own in trained for call in own.calls]
        self._row.quiet = _within(calls, quiet)
        for window in self._windows:
            span = window.begin_s, window.end_s
            self._row.during += _within(calls, window)
            self._row.pauses_s.append(max(longest_pause(own.acked_s, *span) for own in trained))
            self._row.silences_s.append(
                max(longest_silence(own.arrivals, self._runs, *span, PACE_S) for own in readers)
            )


def _last_word(trainer: Worker) -> Trained:
    """Return what a training tells at its end; what it still had to answer comes before."""
    while (word := trainer.receive()) == AGAIN:
        pass
    told: Trained = word
    return told


def _within(calls: list[Call], window: Window) -> list[Call]:
    return [call for call in calls if window.begin_s <= call.at_s <= window.end_s]


@contextmanager
def _reading(ground: Ground) -> Iterator[tuple[list[Reader], Reader]]:
    """Yield a reader that begins at each node, and one of the single process."""
    urls = ground.urls
    readers = [Reader([*urls[number:], *urls[:number]]) for number in range(len(urls))]
    single = Reader([ground.single.url])
    with ExitStack() as stack:
        for reader in (*readers, single):
            reader.start()
            stack.callback(reader.stop)
        yield readers, single
