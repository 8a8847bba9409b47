"""Checks invariants beside the simulation: what was made, what was promised, what is on disk.

Whatever does not tally is a `Violation`: it names the promise that was broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gradwatch_server.core.attempt_history import MAX_LIVE
from gradwatch_server.core.entries import Forgotten, Gap, Opened, Received
from gradwatch_server.core.state import State
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.storage.rows import AlertEvent, LogEntry
from gradwatch_wire import Event, Gains, Manifest, Record, Stats
from gradwatch_wire.health import RankState
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.send_buffer import SendBuffer
from simulation.spill import SimulatedSpill

Key = tuple[str, int]
"""What makes a record of a session unlike its others: its kind, and its step or id."""


class Violation(AssertionError):  # noqa: N818 - as in "a violation of the promise"
    """A promise that was not kept."""


def require(kept: object, promise: str, *facts: object) -> None:
    """Raise unless the promise is kept.

    Raises:
        Violation: If it is not.
    """
    if not kept:
        raise Violation(f"{promise}: " + ", ".join(map(str, facts)))


def key_of(record: Record) -> Key:
    """Return what tells a record from the others of its session."""
    match record:
        case Stats(step=number) | Gains(step=number) | Event(step=number):
            return type(record).__name__, number
        case Manifest(manifest_id=number):
            return "Manifest", number
    return type(record).__name__, 0


@dataclass(slots=True)
class Account:
    """One session: what its worker made, and what of it is committed."""

    name: str
    outbox: Outbox
    spill: SimulatedSpill | None
    max_bytes: int
    made: list[Key] = field(default_factory=list)
    manifests: dict[int, int] = field(default_factory=dict)  # number -> bytes
    stored: set[Key] = field(default_factory=set)
    num_stored: int = 0
    num_lost: int = 0
    num_unresolved: int = 0  # those stored whose manifest was declared lost before
    num_forgotten: int = 0
    is_over: bool = False  # nothing but the spill is left
    is_greedy: bool = False  # its manifests may be too many
    hears_old: bool = False  # answers may come late: one seems to be of a log that lost something
    checked: tuple[int, ...] = ()

    @property
    def num_evicted(self) -> int:
        """Records that may be gone: evicted from the send buffer, or in a log that was lost."""
        return self.outbox.counters["evicted"] + self.num_forgotten

    @property
    def budget(self) -> int:
        """Bytes that the send buffer may hold, and manifests that a new log is told again."""
        told_again = self.num_forgotten or self.hears_old
        again = self.outbox.manifests.values() if told_again else ()
        return self.max_bytes + sum(len(item.body) for item in again)

    @property
    def buffer(self) -> SendBuffer:
        """Outbox in which the worker keeps what is not acknowledged."""
        return self.outbox.buffer

    def holds(self, seq: int) -> bool:
        """Tell whether the worker can still supply a record."""
        if not self.is_over and self.buffer.get(seq) is not None:
            return True
        found = self.spill.find(seq) if self.spill is not None else None
        return found is not None and found.seq == seq

    def begin_anew(
        self, stored: set[Key], num_stored: int, num_lost: int, num_unresolved: int
    ) -> None:
        """Go back to what was committed at some time, or to nothing."""
        before = self.durable
        self.stored = stored
        self.num_stored, self.num_lost = num_stored, num_lost
        self.num_unresolved = num_unresolved
        if self.durable < before:
            self.num_forgotten = max(self.num_forgotten, before)

    @property
    def durable(self) -> int:
        """The highest sequence number that is committed, stored or lost."""
        return self.num_stored + self.num_lost


@dataclass(frozen=True, slots=True)
class Committed:
    """Facts committed up to some time, as a copy of the data directory puts them back.

    Args:
        entries: The logs of all runs.
        alert_events: All that were stored.
        sessions: Session to what was stored of it, and how many were stored, lost and unresolved.
        forgotten: Run to how many were stored and lost of its attempts that left memory.
    """

    entries: tuple[LogEntry, ...] = ()
    alert_events: tuple[AlertEvent, ...] = ()
    sessions: Mapping[bytes, tuple[set[Key], int, int, int]] = field(default_factory=dict)
    forgotten: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gone:
    """Sessions that leave memory, whether they are all of a run, and whether any of them trains."""

    sessions: Sequence[bytes]
    is_whole: bool
    is_live: bool


class InvariantChecker:
    """Accounts for one simulated cluster, record by record."""

    def __init__(self) -> None:
        self.accounts: dict[bytes, Account] = {}
        self.entries: list[LogEntry] = []  # all that is committed
        self._alert_events: list[AlertEvent] = []  # all that readers may have seen
        self.sessions_of: Callable[[str, int], Gone] = lambda *_: Gone((), True, False)
        self._forgotten: dict[str, tuple[int, int]] = {}  # run -> stored, lost of what left memory

    def committed(self, lines: Sequence[LogEntry]) -> None:
        """Note what the disk has for good."""
        for line in lines:
            self.entries.append(line)
            match line.entry.body:
                case Received(envelope):
                    account = self.accounts[envelope.session]
                    self._store(account, envelope.seq, envelope.record)
                case Gap(session, first, last):
                    account = self.accounts[session]
                    where = (account.name, f"{first} to {last}", f"after {account.durable}")
                    require(first == account.durable + 1 <= last, "gaps lie in order", *where)
                    # After the log was lost, records still on their way say what the old one had.
                    owed = range(max(first, account.num_forgotten + 1), last + 1)
                    held = [seq for seq in owed if account.holds(seq)]
                    require(not held, "only what is gone is declared lost", *where, held)
                    account.num_lost += last - first + 1
                    self._lose_manifests(account, first, last)
                case Forgotten(run, attempts):
                    self._forget(run, self.sessions_of(run, attempts))

    def _forget(self, run: str, gone: Gone) -> None:
        """Begin anew with what leaves memory: if it comes back it is not known."""
        require(not gone.is_live, "nothing leaves memory that trains", run)
        stored, lost = self._forgotten.get(run, (0, 0))
        for account in map(self.accounts.__getitem__, gone.sessions):
            stored, lost = stored + account.num_stored, lost + account.num_lost
            account.begin_anew(set(), 0, 0, 0)
        self._forgotten[run] = (0, 0) if gone.is_whole else (stored, lost)

    def _lose_manifests(self, account: Account, first: int, last: int) -> None:
        """Check that a manifest is declared lost only where its process cannot tell it any more."""
        if account.is_over or 2 * sum(account.manifests.values()) > account.max_bytes:
            return  # its send buffer keeps no more of them than fill half of it
        lost = [seq for seq in account.manifests if first <= seq <= last]
        sums = (account.name, f"{first} to {last}", lost)
        require(not lost, "no manifest is lost that its process can tell", *sums)

    def _store(self, account: Account, seq: int, record: Record) -> None:
        key = key_of(record)
        where = (account.name, f"number {seq}", key)
        if isinstance(record, Stats):
            self._store_stats(account, record)
        require(seq == account.durable + 1, "records are stored once and in order", *where)
        require(key == account.made[seq - 1], "what is stored was made", *where)
        require(key not in account.stored, "no record is stored twice", *where)
        account.num_stored += 1
        account.stored.add(key)

    def _store_stats(self, account: Account, stats: Stats) -> None:
        """Note whether the log has the manifest that a record needs."""
        manifest = "Manifest", stats.manifest_id
        if manifest in account.stored:
            return
        seq = account.made.index(manifest) + 1
        where = (account.name, f"step {stats.step}", f"manifest {stats.manifest_id}, number {seq}")
        require(seq <= account.durable, "a record comes after its manifest", *where)
        account.num_unresolved += 1

    def copy(self) -> Committed:
        return Committed(
            tuple(self.entries),
            tuple(self._alert_events),
            {
                session: (
                    set(account.stored),
                    account.num_stored,
                    account.num_lost,
                    account.num_unresolved,
                )
                for session, account in self.accounts.items()
            },
            dict(self._forgotten),
        )

    def go_back(self, committed: Committed) -> None:
        """Begin anew with an earlier log: what came after it is no longer expected."""
        self.entries[:] = committed.entries
        self._alert_events = list(committed.alert_events)
        for session, account in self.accounts.items():
            stored, *counts = committed.sessions.get(session, (set(), 0, 0, 0))
            account.begin_anew(set(stored), *counts)
        self._forgotten = dict(committed.forgotten)

    def acknowledged(self, session: bytes, acked: int) -> None:
        """Check an acknowledgement the moment it is given."""
        durable = self.accounts[session].durable if session in self.accounts else 0
        promise = "acknowledged means committed"
        require(acked <= durable, promise, f"{acked} acknowledged, {durable} committed")

    def check_workers(self) -> None:
        """Check the send buffers: their memory, and that what is not settled is held or gone."""
        for account in self.accounts.values():
            buffer, made = account.buffer, len(account.made)
            counts = (made, account.durable, account.num_lost)
            now = (*counts, buffer.low, len(buffer), buffer.size_bytes)
            if now != account.checked:
                account.checked = now
                self._check_worker(account, made)

    def _check_worker(self, account: Account, made: int) -> None:
        name, buffer, budget = account.name, account.buffer, account.budget
        size = f"{buffer.size_bytes} bytes of {budget}"
        require(buffer.size_bytes <= budget, "a send buffer keeps to its budget", name, size)
        require(buffer.last == made, "every record has a number", name, buffer.last, made)
        require(account.durable <= made, "nothing is stored that was not made", name)
        if account.is_over:
            return
        held = sum(map(account.holds, range(account.durable + 1, made + 1)))
        gone = made - account.durable - held
        sums = (name, f"{gone} and {account.num_lost} of {account.num_evicted}")
        tally = gone + account.num_lost <= account.num_evicted
        require(tally, "what is neither stored nor held was evicted", *sums)

    def check_state(self, state: State) -> None:
        """Check that the aggregator counts what is committed, and as it is."""
        opened = sum(isinstance(entry.entry.body, Opened) for entry in self.entries)
        require(len(state.sessions) <= opened, "sessions come from the log", opened)
        for session in state.sessions.values():
            account = self.accounts[session.id]
            told = (session.num_stored, session.num_lost, session.acked)
            true = (account.num_stored, account.num_lost, account.durable)
            require(told == true, "the API tells what is committed", account.name, told, true)
            unresolved = (account.name, session.num_unresolved, account.num_unresolved)
            attempt = state.runs[session.hello.run].attempt_of(session)
            is_known = not (attempt.retired or account.is_greedy)
            resolves = not is_known or session.num_unresolved == account.num_unresolved
            require(resolves, "a record is unresolved only if its manifest is lost", *unresolved)
            crowded = state.runs[session.hello.run].attempts[-1].number > MAX_LIVE
            if crowded or account.is_over:
                continue
            if session.state in (RankState.ALIVE, RankState.LOST):
                where = (account.name, f"attempt {attempt.number}")
                require(not attempt.retired, "an attempt of a process that lives is judged", *where)
        for run in state.runs.values():
            sums = [*self._forgotten.get(run.name, (0, 0))]
            for session in state.sessions.values():
                if session.hello.run == run.name:
                    sums[0] += session.num_stored
                    sums[1] += session.num_lost
            told_run = [run.num_stored, run.num_lost]
            require(told_run == sums, "a run is the sum of its sessions", told_run, sums)

    def check_published(self, runs: Mapping[str, RunView]) -> None:
        """Check that readers see nothing that is not committed."""
        shown = sum(view.stored + view.lost for view in runs.values())
        kept = sum(account.num_stored + account.num_lost for account in self.accounts.values())
        kept += sum(map(sum, self._forgotten.values()))
        require(shown <= kept, "readers see what is committed", shown, kept)

    def check_alert_events(self, stored: list[AlertEvent]) -> None:
        """Check that what a reader may have seen stays, and that what is new comes after it."""
        before, self._alert_events = self._alert_events, stored
        require(stored[: len(before)] == before, "an alert event stays as it is", before, stored)

    def check_settled(self, session: bytes) -> None:
        """Check that nothing is open: `made == stored + lost`, and what is missing is declared."""
        account = self.accounts[session]
        made, stored, lost = len(account.made), account.num_stored, account.num_lost
        require(made == stored + lost, "made == stored + lost", account.name, made, stored, lost)
        missing = len(set(account.made) - account.stored)
        require(missing == lost, "what is missing is declared", account.name, missing, lost)
