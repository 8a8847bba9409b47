"""One pass: a load is attached, sent and counted, and what that cost is read before and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.cluster_load.load import PROCESSES, WARM, Load
from benchmarks.cluster_load.peers import Job, Sent, run_peers
from benchmarks.cluster_load.targets import Cpu, Target, Written
from benchmarks.harness import workers

SETTLE_S: Final = 2.0
"""After ranks attached, until they send; and until what was acknowledged is evaluated as well."""


SAVE_S: Final = 60.0
"""How often what changed is saved where nobody set another time (`checkpoint_s`)."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What one target did with one load.

    Args:
        load: The load.
        seconds: From the first record until the last one was acknowledged.
        record_bytes: Bytes of a record, as it is sent.
        again: Records that were sent more than once.
        cpu: CPU seconds, until everything was evaluated.
        saving: CPU seconds of saving at the end what changed, once.
        written: What was written meanwhile, and by that.
        memory_mb: Memory of all aggregators at the end, in 10^6 bytes.
    """

    load: Load
    seconds: float
    record_bytes: float
    again: int
    cpu: Cpu
    saving: Cpu
    written: Written
    memory_mb: float

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.load.records / self.seconds

    @property
    def each(self) -> Cpu:
        """CPU seconds of a record, but for saving."""
        return self.cpu.per(self.load.records)

    def each_of(self, rate: float) -> Cpu:
        """Return the CPU seconds of a record where all ranks send so many a second together.

        What changed is saved once in `SAVE_S`, whatever sends the records.
        """
        return self.each + self.saving.per(rate * SAVE_S)


def measure(target: Target, load: Load, look: Callable[[Target], None]) -> Pass:
    """Send a load to a target, have a look at it, and stop it."""
    jobs = [Job(target.endpoints, load, share) for share in range(min(PROCESSES, load.sessions))]
    with workers(run_peers, jobs) as crowd:
        for worker in crowd:
            assert worker.receive() == "attached"
        time.sleep(SETTLE_S)
        written, before, began_ns = target.written(), target.cpu(), time.monotonic_ns()
        for worker in crowd:
            worker.tell("go")
        sent: list[Sent] = [worker.receive() for worker in crowd]
        time.sleep(SETTLE_S)
        after, memory_mb = target.cpu(), target.memory_mb()
        counted = target.counted()
        look(target)
        saving = target.stop()
    stored = load.sessions * (1 + WARM) + (0 if load.beats else load.records)
    assert (counted.stored, counted.lost) == (stored, 0), (counted, load)
    assert counted.alerts == 0, counted  # they cost more than records, which are measured here
    return Pass(
        load,
        seconds=(max(own.finished_ns for own in sent) - began_ns) / 1e9,
        record_bytes=sum(own.num_bytes for own in sent) / load.records,
        again=sum(own.again for own in sent),
        cpu=after - before,
        saving=saving,
        written=target.written() - written,
        memory_mb=memory_mb,
    )
