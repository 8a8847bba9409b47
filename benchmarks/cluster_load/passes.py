"""One pass: a load is attached, sent and counted, and what that cost is read before and after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from benchmarks.cluster_load.load import PROCESSES, Load
from benchmarks.cluster_load.peers import Job, Sent, run_peers
from benchmarks.cluster_load.targets import Cpu, Target
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
    """

    load: Load
    seconds: float
    record_bytes: float
    again: int
    cpu: Cpu
    attach_cpu: Cpu

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
        before, began_ns = target.cpu(), time.monotonic_ns()
        for worker in crowd:
            worker.tell("go")
        sent: list[Sent] = [worker.receive() for worker in crowd]
        time.sleep(SETTLE_S)
        after = target.cpu()
        counted = target.counted()
    manifests = load.sessions
    stored = manifests if load.beats else manifests + load.records
    assert (counted.stored, counted.lost) == (stored, 0), (counted, load)
    assert counted.alerts == 0, counted  # they cost more than records, which are measured here
    return Pass(
        load,
        seconds=(max(own.finished_ns for own in sent) - began_ns) / 1e9,
        record_bytes=sum(own.num_bytes for own in sent) / load.records,
        again=sum(own.again for own in sent),
        cpu=after - before,
        attach_cpu=before - start,
    )
