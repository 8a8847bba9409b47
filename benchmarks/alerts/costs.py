"""What judging a step costs: the fold as a whole, each rule, and each part that they share.

    python -m benchmarks.alerts.costs DIRECTORY RUN ...

All times are of the processor, and without what is measured within them; measuring itself adds
about a microsecond to each call.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeAlias
from unittest.mock import patch

from benchmarks.alerts.judge import Judge
from benchmarks.alerts.recorded import Recorded
from benchmarks.alerts.replay import steps
from benchmarks.alerts.store import Collection
from benchmarks.report import show
from gradwatch_server.core.alerting.active import ActiveAlerts
from gradwatch_server.core.alerting.baselines.baselines import Baselines
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.core.attempt import closed_frames
from gradwatch_server.core.entries import Entry
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.session import Session

MAX_STEPS: Final = 1500
WHOLE: Final = "all, not measured inside"
REST: Final = "the rest"

Method: TypeAlias = Callable[..., Any]

_SHARED: Final[Sequence[tuple[str, Any, str]]] = (
    ("a record is read", Session, "read"),
    ("ranks are merged", closed_frames, "merge"),
    ("beside what was usual", Baselines, "judge"),
    ("what is usual", Baselines, "add"),
    ("flags", closed_frames, "find_flags"),
    ("alerts", ActiveAlerts, "update"),
    ("window", Window, "add"),
    ("health", closed_frames, "frame_score"),
)


class Costs:
    """Processor seconds by what they went to."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]  # of what is measured within each that runs

    def timed(self, method: Method, name: str) -> Method:
        """Return the method, and note what it takes; what it yields is made at once."""
        self.seconds.setdefault(name, 0.0)

        def run(*arguments: Any, **settings: Any) -> Any:
            self._inner.append(0.0)
            began = time.process_time()
            found = method(*arguments, **settings)
            if isinstance(found, Iterator):
                found = iter(list(found))
            spent = time.process_time() - began
            self.seconds[name] += spent - self._inner.pop()
            self._inner[-1] += spent
            return found

        return run


def measure(recorded: Recorded) -> dict[str, float]:
    """Return microseconds per step of the first steps of a run, by what they go to."""
    every = [own for _, own in steps(recorded)][:MAX_STEPS]
    costs = Costs()
    _replay(every, costs, WHOLE)
    with ExitStack() as patches:
        for name, owner, method in _SHARED:
            clocked = costs.timed(getattr(owner, method), name)
            patches.enter_context(patch.object(owner, method, clocked))
        for rule in REGISTRY:
            for method in ("raised", "evaluate"):
                clocked = costs.timed(getattr(rule, method), rule.name)
                patches.enter_context(patch.object(rule, method, clocked))
        _replay(every, costs, REST)
    return {name: spent * 1e6 / len(every) for name, spent in costs.seconds.items()}


def _replay(every: Sequence[Sequence[Entry]], costs: Costs, name: str) -> None:
    judge = Judge()

    def replay() -> None:
        for own in every:
            judge.add(own)

    costs.timed(replay, name)()


def main(directory: str, *names: str) -> None:
    """Print the costs of some runs."""
    runs = Collection(Path(directory))
    found = {name: runs.read(name) for name in names}
    measured = [measure(recorded) for recorded in found.values()]
    columns = [f"{name} {own.world} x {len(own.layers)}" for name, own in found.items()]
    rows = [(part, *(f"{own[part]:.1f}" for own in measured)) for part in measured[0]]
    note = "after the name: ranks x layers; a step has one record of each rank"
    show("microseconds per step", ("part", *columns), rows, note)


if __name__ == "__main__":
    main(*sys.argv[1:])
