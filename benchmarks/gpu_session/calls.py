"""Calls into CUDA, counted by kind and by the thread that made them, from torch's profiler."""

from __future__ import annotations

import json
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpu_session.device import Device

RUNTIME: Final = ("cuda_runtime", "cuda_driver")
KINDS: Final = (
    ("waits", "Synchronize"),
    ("event queries", "EventQuery"),
    ("event records", "EventRecord"),
    ("host allocations", "HostAlloc"),
    ("allocations", "cudaMalloc"),
    ("copies", "Memcpy"),
    ("fills", "Memset"),
    ("launches", "Launch"),
)
"""Kinds of calls, and what the names of each have in them; the first that fits counts."""

MARK: Final = "gpu_session: what is counted"
SENDER: Final = "gradwatch-sender"
TRAINING, OTHER, CONTROL = "training", "other", "control"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a trace.

    Args:
        kind: `kernel`, `cuda_runtime`, `cuda_driver`, `cpu_op`, ...
        name: Of the function or the kernel.
        thread: As the trace has it: a system's id, or what pthreads calls it.
        us: How long it took.
        begin_us: When it began.
    """

    kind: str
    name: str
    thread: int
    us: float
    begin_us: float = 0.0


def profiled(call: Callable[[], Any], device: Device) -> list[Event]:
    """Return the calls while it ran, and what the device did of it."""
    activities = [ProfilerActivity.CPU]
    if not device.is_rehearsal:
        activities.append(ProfilerActivity.CUDA)
    device.synchronize()
    with profile(activities=activities) as profiler:
        with record_function(MARK):
            call()
        device.synchronize()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text("utf-8"))
    found = [
        Event(
            event["cat"],
            event["name"],
            _number(event.get("tid")),
            float(event.get("dur", 0)),
            float(event.get("ts", 0)),
        )
        for event in trace["traceEvents"]
        if "cat" in event
    ]
    (mark,) = (each for each in found if each.name == MARK and each.kind == "user_annotation")
    end_us = mark.begin_us + mark.us
    # The profiler and this function make calls of their own, before and after.
    return [
        each
        for each in found
        if each.kind not in RUNTIME or mark.begin_us <= each.begin_us <= end_us
    ]


def _number(thread: object) -> int:
    try:
        return int(str(thread))
    except ValueError:
        return 0


def by_thread(
    events: Iterable[Event], threads: Mapping[str, Iterable[int]]
) -> dict[str, Counter[str]]:
    """Count calls into CUDA by thread and kind.

    Args:
        events: Of a trace.
        threads: Name to the numbers that a thread may go by.
    """
    short = {number & 0xFFFFFFFF: name for name, thread in threads.items() for number in thread}
    found: dict[str, Counter[str]] = {name: Counter() for name in threads}
    for event in events:
        if event.kind in RUNTIME:
            # The profiler keeps 32 bits, with or without a sign.
            name = short.get(event.thread & 0xFFFFFFFF) or short.get(-event.thread & 0xFFFFFFFF)
            found.setdefault(name or OTHER, Counter())[kind_of(event.name)] += 1
    return found


def kind_of(name: str) -> str:
    return next((kind for kind, part in KINDS if part in name), name)


def own_threads() -> dict[str, list[int]]:
    """Return the threads of this process, by what they do: the main one trains, autograd too."""
    found: dict[str, list[int]] = {TRAINING: [], SENDER: []}
    for thread in threading.enumerate():
        numbers = [thread.native_id or 0, thread.ident or 0]
        if thread is threading.main_thread():
            found[TRAINING] += numbers
        elif thread.name in (SENDER, CONTROL):
            found.setdefault(thread.name, []).extend(numbers)
    for task in Path("/proc/self/task").glob("*/comm"):
        if task.read_text("utf-8").startswith("pt_autograd"):
            found[TRAINING].append(int(task.parent.name))
    return found


class Control:
    """A thread that queries an event once: if the trace does not show that, it shows nothing."""

    def __init__(self) -> None:
        self._asked, self._done = threading.Event(), threading.Event()
        self._event = torch.cuda.Event()
        self._event.record()
        self._thread = threading.Thread(target=self._run, name=CONTROL, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._asked.wait()
        self._event.query()
        self._done.set()
        threading.Event().wait()  # its number must not be given to another thread

    def query(self) -> None:
        """Let it query, and wait until it has."""
        self._asked.set()
        self._done.wait()
