"""Evaluation of one observation by a rule: the verdict, and the content of an alert of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np

from gradwatch_server.core.alerting.memory import Memories
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_server.core.frames.outputs import OutputHistory
from gradwatch_server.core.frames.updates import UpdateHistory
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.judge.findings import Findings
from gradwatch_server.core.judge.judge import Judge
from gradwatch_wire.health import Severity

Memory = TypeVar("Memory")

ALL_LAYERS: Final = "all"
"""The group of the layers that are in no named group."""

NOT_WORSE: Final = np.ones(1)
"""`Evaluation.excess` of a rule whose severity alone says when it matters more."""

NUM_BEFORE: Final = 5
"""Frames before the first bad one that an origin shows."""


def all_groups(named: Mapping[str, BoolArray], num_layers: int) -> dict[str, BoolArray]:
    """Return the named groups and `ALL_LAYERS`, (layers,) each."""
    rest = np.ones(num_layers, dtype=np.bool_)
    for members in named.values():
        rest &= ~members
    rest |= named.get(ALL_LAYERS, rest)  # a group may have that name, too
    return {**named, ALL_LAYERS: rest}


def free_group(name: str, suffix: str, groups: Mapping[str, BoolArray]) -> str:
    """Return a name of alerts that no group of layers has."""
    while name in groups:
        name = f"{name} {suffix}"
    return name


@dataclass(frozen=True, slots=True)
class Context:
    """Facts that the rules need of the attempt that an observation belongs to.

    Args:
        groups: Group to the layers in it, (layers,) each.
        outputs: What the outputs of modules were in the last of them.
        judge: The judge of the attempt, which has judged the frame in hand.
        memories: What each rule that has a memory remembers, by its name.
        watched: (layers,) that the rule in hand is limited to, None for all.
        limited: Rule to its own context, of those that are limited to some layers.
        expected: Signs of a bug that are meant so, as the job says.
        epoch: How often the steps of the attempt went back: the same step comes once in each.
        numel: (layers,) elements; empty where they are not known.
        dtypes: (layers,) dtype of the gradient, as torch spells it.
        beta2: (layers,) decay of the second moment in the optimizer, NaN where it has none.
        optimizer: Class of the optimizer, empty where it is not known.
    """

    run: str
    attempt: int
    names: tuple[str, ...]
    groups: Mapping[str, BoolArray]
    window: Window
    outputs: OutputHistory = field(default_factory=OutputHistory)
    updates: UpdateHistory = field(default_factory=UpdateHistory)
    judge: Judge = field(default_factory=Judge)
    memories: Memories = field(default_factory=Memories)
    watched: BoolArray | None = None
    limited: Mapping[str, Context] = field(default_factory=dict)
    expected: tuple[str, ...] = ()
    epoch: int = 0
    numel: FloatArray = field(default_factory=lambda: np.zeros(0))
    dtypes: Sequence[str] = ()
    beta2: FloatArray = field(default_factory=lambda: np.zeros(0))
    optimizer: str = ""

    def of(self, rule: str) -> Context:
        """Return what a rule is to know: in its groups are only the layers that it watches."""
        return self.limited.get(rule, self)

    @property
    def findings(self) -> Findings:
        """Findings of the judge in the frame in hand."""
        findings = self.judge.findings
        assert findings is not None  # noqa: S101 - rules about frames are asked after the judge
        return findings

    def memory(self, rule: str, kind: type[Memory]) -> Memory:
        """Return the memory of a rule; *rule* is `self.name` in a rule, *kind* is `self.memory`.

        Raises:
            KeyError: If the rule has no memory, or is not in force.
        """
        memory = self.memories[rule]
        assert isinstance(memory, kind)  # noqa: S101 - for the type checker
        return memory


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """Flags of one rule, one per layer; a rule about the run has a single flag.

    Args:
        raised: (layers,) or (1,), beyond the raising threshold.
        held: Same shape, not yet past the clearing threshold; a superset of `raised`.
        seen: Same shape, where the rule could see; where it could not (the layer is absent, or
            non-finite and the rule is about norms) it neither holds nor clears.
        present: Same shape, layers that have a gradient; an alert none of whose layers has
            one for long enough is over. None if that cannot be said.
        frozen: Same shape, layers known to be frozen: why an alert is over. None if that cannot be
            said.
    """

    raised: BoolArray
    held: BoolArray
    seen: BoolArray
    present: BoolArray | None = None
    frozen: BoolArray | None = None

    @classmethod
    def of_run(cls, *, raised: bool, held: bool, seen: bool = True) -> RuleVerdict:
        return cls(*np.array([[raised], [held], [seen]]))


def _unchanged(origin: Origin) -> Origin:
    return origin


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Judgement of one rule on one group at one step.

    Args:
        group: Name of the group of layers; of a rule that is about the run, a word for what it is
            about.
        verdict: The layers that are bad, or one flag each for a rule that is about the run.
        names: (layers,) of the verdict; none if it is about the run.
        origin: Says where what is raised began.
        severity: How much it matters, by how many times in a row it is bad.
        extend: Returns the origin of an alert that goes on, with what this adds to it.
        key: What the alert's id is made of in place of the group, where one step may see several
            alerts of it begin.
        excess: (layers,) by what factor each is beyond its limit: ten times what was told is told
            again. None if the rule has no such measure; the origin's value is one where `extend`
            changes it.
        for_steps: Bad frames in a row after which it fires, in place of the rule's.
        clear_steps: Good frames in a row after which it is resolved, in place of the rule's.
        is_alone: Whether it matters whatever led to it, so that it is no consequence.
    """

    group: str
    step: int
    received_ns: int
    verdict: RuleVerdict
    names: tuple[str, ...]
    origin: Callable[[BoolArray], Origin]
    severity: Callable[[int], Severity]
    extend: Callable[[Origin], Origin] = _unchanged
    key: str = ""
    excess: FloatArray | None = None
    for_steps: int | None = None
    clear_steps: int | None = None
    is_alone: bool = False
