"""The simulated cluster: hundreds of seeds keep every promise, and a planted bug breaks one.

For each invariant there is a bug that only it has to notice; the seeds are found, not made up.
"""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.entries import Tick
from gradwatch_server.core.sequence import SequenceCheck, SequenceResult, SequenceTracker
from gradwatch_server.engine.engine import Engine
from gradwatch_server.storage.rows import StorageError
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.send_buffer import BufferedRecord, SendBuffer
from gradwatch_wire.session.session import Session
from simulation.__main__ import app
from simulation.cluster import Parts
from simulation.scenario import KINDS
from simulation.simulate import simulate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SEEDS_FOR_A_BUG = 150
LONG_SEEDS = 6
SEEDS_OF_A_KIND = 20

DATA_LOST = {"amnesia": 0.6, "crash_points": 60, "cut": 0.1, "duplicate": 0.9}


@pytest.mark.timeout(600)  # 40 s of work, and a machine may have much else to do
@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 200), marks=pytest.mark.exhaustive)]
)
def test_every_seed_keeps_every_promise(seeds: range) -> None:
    outcomes = [simulate(seed) for seed in seeds]

    assert {o.seed: (o.violation, o.trace) for o in outcomes if o.violation} == {}
    # And things did happen.
    assert sum(o.boots for o in outcomes) > 1.5 * len(seeds)
    assert sum(o.stored for o in outcomes) > 20 * len(seeds)
    assert sum(o.lost for o in outcomes) > len(seeds)
    assert sum(o.duplicates for o in outcomes) > len(seeds) / 10  # of lost answers alone
    assert sum(o.alerts for o in outcomes) > len(seeds)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_greedy_peer_costs_an_honest_run_nothing(kind: str) -> None:
    outcomes = [simulate(seed, changes={"greedy": kind}) for seed in range(SEEDS_OF_A_KIND)]

    assert {o.seed: (o.violation, o.trace) for o in outcomes if o.violation} == {}
    assert sum(o.stored for o in outcomes) > 20 * SEEDS_OF_A_KIND
    if kind == "names":
        assert sum(o.evicted for o in outcomes) > SEEDS_OF_A_KIND
    if kind == "attempts":
        assert sum(o.refused for o in outcomes) > SEEDS_OF_A_KIND


@pytest.mark.exhaustive
def test_long_runs_keep_every_promise_once_it_is_known_what_is_usual() -> None:
    outcomes = [simulate(seed, is_long=True) for seed in range(LONG_SEEDS)]

    assert {o.seed: (o.violation, o.trace) for o in outcomes if o.violation} == {}
    assert sum(o.boots for o in outcomes) > 1.5 * LONG_SEEDS
    assert {"exploding", "nonfinite"} <= {rule for o in outcomes for rule in o.rules}
    assert any(o.acknowledged for o in outcomes)
    assert any(o.silenced for o in outcomes)


@pytest.mark.exhaustive
def test_the_same_seed_is_the_same_run() -> None:
    for seed in range(10):
        assert simulate(seed) == simulate(seed)


class AcknowledgesFirst(Engine):
    """Answers as soon as it has checked a message."""

    def _accept(self, message: Any, batch: Any) -> None:
        super()._accept(message, batch)
        self._acknowledge(batch)


class IgnoresTheDisk(Engine):
    """Goes on when the log cannot be written."""

    def _commit(self, lines: Sequence[Any], changes: Sequence[Any], saves: Sequence[Any]) -> bool:
        with contextlib.suppress(StorageError):
            self._store.log.append(lines)
        self._is_ahead = False
        return True


class ShowsTooEarly(Engine):
    """Lets readers see a batch before it is committed."""

    def _commit(self, lines: Sequence[Any], changes: Sequence[Any], saves: Sequence[Any]) -> bool:
        self.publishing.publish()
        self.publishing.build(list(self.published.revisions), self._state.runs.get)
        return super()._commit(lines, changes, saves)


class ShowsWhileTheDiskIsFull(Engine):
    """Lets readers see a batch that cannot be committed yet."""

    def _wait_for_store(self, seconds: float, stopping: Any) -> None:
        self._ingest.drain(seconds, stopping)
        self.publishing.build(self.publishing.find_wanted(), self._state.runs.get)


class KeepsNoTime(Engine):
    """Writes that time passed, and does not act on it until it is started again."""

    def _fold(self, entries_of: Any) -> list[Any]:
        apply = self._state.apply_to
        self._state.apply_to = lambda name, entry, *number: (  # type: ignore[method-assign]
            [] if isinstance(entry.body, Tick) else apply(name, entry, *number)
        )
        changes = super()._fold(entries_of)
        self._state.apply_to = apply  # type: ignore[method-assign]
        return changes


class ForgetsAlerts(Engine):
    """Stores no alert."""

    def _commit(self, lines: Sequence[Any], changes: Sequence[Any], saves: Sequence[Any]) -> bool:
        return super()._commit(lines, (), saves)


class ForgetsOnRestart(Engine):
    """Comes back without the newest step of each rank."""

    def _recover(self, batch: Any) -> bool:
        known = set(self._state.sessions)
        wanted = super()._recover(batch)
        for session in (
            session for key, session in self._state.sessions.items() if key not in known
        ):
            session.last_step = -1
        return wanted


class TrimsTooMuch(Engine):
    """Deletes of the log what no checkpoint stands for."""

    def _round(self) -> None:
        super()._round()
        for row in self._store.log.oldest(0, 1 << 31)[-1:]:
            self._store.log.delete([row.number])


class NeverGivesUp(Engine):
    """Takes no session for lost."""

    def _round(self) -> None:
        self.published.last_seen = {}
        super()._round()


class TracksWith(Engine):
    """Has another tracker of sequence numbers."""

    tracker: type[SequenceTracker]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._tracker.__class__ = self.tracker


class TakesDuplicates(TracksWith):
    """Stores what it has."""

    class tracker(SequenceTracker):  # noqa: N801 - takes the place of an attribute
        def check(self, session: bytes, seq: int, low: int) -> SequenceCheck:
            checked = super().check(session, seq, low)
            again = checked.outcome is SequenceResult.DUPLICATE
            return SequenceCheck(SequenceResult.ACCEPT) if again else checked


class SkipsSilently(TracksWith):
    """Goes on after what is missing, and says nothing."""

    class tracker(SequenceTracker):  # noqa: N801 - takes the place of an attribute
        def check(self, session: bytes, seq: int, low: int) -> SequenceCheck:
            return SequenceCheck(super().check(session, seq, seq).outcome)


class GivesUpEarly(TracksWith):
    """Declares lost what it could ask for."""

    class tracker(SequenceTracker):  # noqa: N801 - takes the place of an attribute
        def check(self, session: bytes, seq: int, low: int) -> SequenceCheck:
            return super().check(session, seq, seq)


class ForgetsWhatManifestsSaid(Engine):
    """Comes back without them."""

    def _recover(self, batch: Any) -> bool:
        known = set(self._state.sessions)
        wanted = super()._recover(batch)
        for session in (
            session for key, session in self._state.sessions.items() if key not in known
        ):
            session.manifests.clear()
        return wanted


class MiscountsLoss(Engine):
    """Tells of one lost record where there were several."""

    def _fold(self, entries_of: Any) -> list[Any]:
        changes = super()._fold(entries_of)
        for session in self._state.sessions.values():
            session.num_lost = min(session.num_lost, 1)
        return changes


class NeverRewinds(Session[Outbox]):
    """Sends nothing twice."""

    def receive(self, envelope: Any, now_s: float) -> bool:
        before = self._cursor
        is_own = super().receive(envelope, now_s)
        self._cursor = max(self._cursor, before)
        return is_own


class TrustsTheSocket(Session[Outbox]):
    """Forgets what it has sent."""

    def sent(self) -> None:
        super().sent()
        self.source.buffer.release(self._cursor - 1)


class Hoards(Session[Outbox]):
    """Keeps everything."""

    def __init__(self, session_id: bytes, hello: Any, outbox: Outbox, max_in_flight: int) -> None:
        outbox.buffer = SendBuffer(outbox.buffer.max_bytes * 10)
        super().__init__(session_id, hello, outbox, max_in_flight)


class NumbersTwice(Session[Outbox]):
    """Gives the number of an evicted record to another one."""

    def peek(self) -> bytes | None:
        buffer = self.source.buffer
        if self.counters["evicted"] and self._floor < buffer.low:
            item = buffer.get(buffer.last)
            if item is not None:
                again = BufferedRecord(self._floor, item.kind, item.time_ns, item.body)
                buffer.put_back(again)
        return super().peek()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("bug", "promise"),
    [
        (AcknowledgesFirst, "acknowledged means committed"),
        (ShowsTooEarly, "readers see what is committed"),
        (ShowsWhileTheDiskIsFull, "readers see what is committed"),
        (IgnoresTheDisk, "acknowledged means committed"),
        (TakesDuplicates, "records are stored once and in order"),
        (SkipsSilently, "records are stored once and in order"),
        (NumbersTwice, "what is stored was made"),
        (GivesUpEarly, "only what is gone is declared lost"),
        (TrustsTheSocket, "what is neither stored nor held was evicted"),
        (Hoards, "a send buffer keeps to its budget"),
        (ForgetsWhatManifestsSaid, "a record is unresolved only if its manifest is lost"),
        (MiscountsLoss, "the API tells what is committed"),
        (KeepsNoTime, "a replay gives the same views"),
        (ForgetsOnRestart, "a replay gives the same views"),
        (TrimsTooMuch, "what is committed is on the disk"),
        (ForgetsAlerts, "a replay gives the same alerts"),
        (NeverRewinds, "a living worker delivers everything"),
        (NeverGivesUp, "who said BYE has ended, who was killed is lost"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_planted_bug_is_found(bug: type[Engine | Session[Outbox]], promise: str) -> None:
    parts = Parts(engine=bug) if issubclass(bug, Engine) else Parts(session=bug)
    assert_found(promise, parts)


@pytest.mark.parametrize("promise", ["open frames are bounded", "every frame is closed in the end"])
def test_frames_that_never_close_are_found(promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attempt, "close_frames", lambda *_: iter(()))
    assert_found(promise, Parts())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("bug", "faults", "promise"),
    [
        (
            "gradwatch_server.core.attempt_history._may_return",
            {"late": 0.2, "partition": 0.1, "world": 1},
            "an attempt of a process that lives is judged",
        ),
        (
            "gradwatch_server.core.sequence.SequenceTracker.is_doubtful",
            DATA_LOST,
            "no manifest is lost that its process can tell",
        ),
        (
            "gradwatch_wire.session.send_buffer.SendBuffer.put_back",
            DATA_LOST,
            "no manifest is lost that its process can tell",
        ),
    ],
    ids=["retires what is lost", "believes an old gap", "tells no manifest again"],
)
def test_a_rare_bug_is_found(
    bug: str, faults: Any, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bug, lambda *_: False)
    assert_found(promise, Parts(), faults)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("bug", "does", "faults", "promise"),
    [
        (
            "gradwatch_server.engine.memory.RunMemory.find_lacking",
            None,
            {"delay_s": 1.5, "hwm": 5},
            "budgets are kept to",
        ),
        (
            "gradwatch_server.engine.memory._is_unheard",
            True,
            {"delay_s": 1.5, "hwm": 5},
            "nothing leaves memory that trains",
        ),
        (
            "gradwatch_server.engine.memory.RunMemory._find_victim",
            None,
            {"amnesia": 0.6, "restart": 0.01},
            "no honest process is refused",
        ),
    ],
    ids=["takes any run", "lets anything go", "lets nothing go"],
)
def test_a_bug_that_serves_a_greedy_peer_is_found(
    bug: str, does: Any, faults: Any, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bug, lambda *_, **__: does)
    assert_found(promise, Parts(), {"greedy": "names", **faults})


def assert_found(promise: str, parts: Parts, faults: Any = None) -> None:
    broken = set()
    for seed in range(SEEDS_FOR_A_BUG):
        violation = simulate(seed, parts, changes=faults).violation
        if violation is not None:
            broken.add(violation.partition(":")[0])
        if promise in broken:
            return
    pytest.fail(f"it broke {broken or 'nothing'} in {SEEDS_FOR_A_BUG} seeds")


@pytest.mark.exhaustive
def test_the_command_runs_seeds_or_shows_one() -> None:
    """Run as `scripts/simulate` does."""
    assert "3 seeds kept every promise" in run_command("--seeds", "3")
    shared = run_command("--seeds", "24", "--jobs", "2")
    alone = run_command("--seeds", "24")
    assert shared.partition("seeds/s")[2] == alone.partition("seeds/s")[2] != ""

    shown = run_command("--seed", "7")
    assert "everything heals" in shown
    assert shown.endswith("seed 7 kept every promise\n")


def run_command(*arguments: str) -> str:
    command = [sys.executable, "-m", "simulation", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_a_failing_seed_is_printed_with_the_command_that_shows_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buggy = functools.partial(simulate, parts=Parts(engine=AcknowledgesFirst))
    monkeypatch.setattr("simulation.__main__.simulate", buggy)

    done = CliRunner().invoke(app, ["--seeds", "40"])

    assert done.exit_code == 1
    broken = re.findall(
        r"^ .+ s  aggregator starts, .+\n(?: .+\n)*"
        r"seed (\d+) broke one: acknowledged means committed: .+\n"
        r"again: scripts/simulate --seed \1$",
        done.output,
        re.MULTILINE,
    )
    assert len(broken) > 1
    told = f"{len(broken)} of 40 seeds broke a promise: {', '.join(broken)}"
    assert done.output.splitlines()[-1] == told
    assert CliRunner().invoke(app, ["--seed", broken[0]]).exit_code == 1
