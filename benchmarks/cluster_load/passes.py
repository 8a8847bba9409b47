"""One pass: a load is attached, sent and counted, and what that cost is read before and after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from benchmarks.cluster_load.load import PROCESSES, WARM, Load
from benchmarks.cluster_load.peers import Job, Sent, run_peers
from benchmarks.cluster_load.targets import Cpu, Target, Written
from benchmarks.harness import workers

SETTLE_S: Final = 2.0
"""After ranks attached, until they send; and until what was acknowledged is evaluated as well."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What one target did with one load.

    Args:
        load: The load.
        seconds: From the first record until the last one was acknowledged.
        record_bytes: Bytes of a record, as it is sent.
        again: Records that were sent more than once.
        cpu: CPU seconds, until everything was evaluated.
        attach_cpu: CPU seconds of attaching.
        written: What was written meanwhile.
        memory_mb: Memory of all aggregators at the end, in 10^6 bytes.
    """

    load: Load
    seconds: float
    record_bytes: float
    again: int
    cpu: Cpu
    attach_cpu: Cpu
    written: Written
    memory_mb: float

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.load.records / self.seconds

    @property
    def each(self) -> Cpu:
        """CPU seconds of a record."""
        return self.cpu.per(self.load.records)


def measure(target: Target, load: Load) -> Pass:
    """Send a load to a target."""
    jobs = [Job(target.endpoints, load, share) for share in range(min(PROCESSES, load.sessions))]
    start = target.cpu()
    with workers(run_peers, jobs) as crowd:
        for worker in crowd:
            assert worker.receive() == "attached"
        time.sleep(SETTLE_S)
        written, before, began_ns = target.written(), target.cpu(), time.monotonic_ns()
        for worker in crowd:
            worker.tell("go")
        sent: list[Sent] = [worker.receive() for worker in crowd]
        time.sleep(SETTLE_S)
        after, written = target.cpu(), target.written() - written
        memory_mb = target.memory_mb()
        counted = target.counted()
    stored = load.sessions * (1 + WARM) + (0 if load.beats else load.records)
    assert (counted.stored, counted.lost) == (stored, 0), (counted, load)
    assert counted.alerts == 0, counted  # they cost more than records, which are measured here
    return Pass(
        load,
        seconds=(max(own.finished_ns for own in sent) - began_ns) / 1e9,
        record_bytes=sum(own.num_bytes for own in sent) / load.records,
        again=sum(own.again for own in sent),
        cpu=after - before,
        attach_cpu=before - start,
        written=written,
        memory_mb=memory_mb,
    )
