"""Base of all rules: settings, evaluation, choice of origin, and what documents it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from enum import Enum, IntFlag, auto
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

from gradwatch_server.core.alerting.evaluation import Context, Evaluation
from gradwatch_server.core.alerting.rules.patterns import Patterns, matches
from gradwatch_server.core.arrays import BoolArray
from gradwatch_wire.health import Severity

Steps = Annotated[int, Field(ge=1, le=100_000)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]

FOR_STEPS: Final = "Bad frames until the alert fires; a single good one between them is forgiven."
CLEAR_STEPS: Final = "Consecutive frames that must be good before a firing alert is resolved."
SEVERITY: Final = "Severity of its alerts."
"""Descriptions of the settings of every rule, for those that have another default."""


class Sign(IntFlag):
    """Facts of a frame without which some rules find nothing."""

    NONFINITE = auto()
    """A NaN or Inf in a gradient or in the loss."""
    UNUSUAL = auto()
    """A deviation, one that is not over yet, or a module without a history."""
    ZERO = auto()
    """A module whose gradient is zero."""
    REPLICAS = auto()
    """Ranks that have to be equal and are not, or that sent digests of their weights."""
    LOCAL_NORMS = auto()
    """Norms of a rank's own gradients."""
    LOSS_SCALE = auto()
    """A loss scale."""
    SMALL = auto()
    """A norm below the `floor` of a rule, or a module that is cut off by depth."""
    INCOMPLETE = auto()
    """A layer that is not there, or that joined or came back with this frame."""
    GROUPS = auto()
    """Named groups of layers."""
    SILENT_BUG = auto()
    """A learning rate of 0, the total norm of the frame before, two ranks with equal probes,
    gradients that were carried over, or what the weights did."""
    LOST = auto()
    """Records that are lost: true of a declared loss alone, and of no frame."""
    ALWAYS = auto()
    """True of every frame."""


class HealthShare(Enum):
    """The two shares of layers that the health score is made of."""

    VANISHING = "vanishing"
    EXPLODING = "exploding"


class Rule(BaseModel, ABC):
    """A rule with its settings, which are its fields.

    The docstring of a rule is its section in docs/rules.md: what it sees in one line, then, as
    Markdown, what else a user should know. Each field has a description.

    Attributes:
        name: Its name in `gradwatch.toml`, in alerts and in the documentation.
        takes: Types of the observations that it is evaluated by: `Frame`, `GainFrame`,
            `DeclaredLoss`, or any other that `Attempt` hands to the rules.
        signs: Signs of which a frame must have one for the rule to find anything. It is not asked
            about other frames.
        yields_to: Rules registered before it; what one of these flags is not flagged by this one.
        follows: Rules whose alerts explain one of this rule, the best explanation first: one that
            begins beside or soon after such an alert is `info`. Where it matters more, that alert
            is raised to its severity, or this alert is reported itself if that alert is over.
        recurs: Whether an alert that begins soon after the last one of its rule and group was over
            is the same once more, and `info` likewise. For rules whose alerts are over within a
            few frames; not where time passes without steps.
        spoils_steps: Whether a checkpoint that was made during its alert is no good one.
        health: Share of the health score that the layers it flags count towards; with None
            `/health` does not count them at all.
        memory: Dataclass of what it knows of an attempt, made without arguments; None if it judges
            each observation by itself. The attempt keeps and saves it. `raised` comes by every
            observation once and is where it learns.
        formula: When it raises, in the names of its settings, as Markdown.
        tuning: Which settings to change when it says too much or too little, as Markdown.
        source: Where the rule and its defaults come from, as Markdown.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str]
    takes: ClassVar[tuple[type, ...]]
    signs: ClassVar[Sign] = Sign.ALWAYS
    yields_to: ClassVar[tuple[str, ...]] = ()
    follows: ClassVar[tuple[str, ...]] = ()
    recurs: ClassVar[bool] = False
    spoils_steps: ClassVar[bool] = True
    health: ClassVar[HealthShare | None] = None
    memory: ClassVar[type | None] = None
    formula: ClassVar[str] = ""
    tuning: ClassVar[str] = ""
    source: ClassVar[str] = ""

    enabled: bool = Field(True, description="Whether the rule is evaluated at all.")
    for_steps: Steps = Field(1, description=FOR_STEPS)
    clear_steps: Steps = Field(3, description=CLEAR_STEPS)
    severity: Severity = Field(Severity.WARNING, description=SEVERITY)
    runs: Patterns = Field((), description="Patterns of the runs that it watches, of all if empty.")

    @property
    def floor(self) -> float:
        """L2 norm below which a layer is small to this rule, 0 for none."""
        return 0.0

    def watches(self, run: str) -> bool:
        return matches(self.runs, run)

    def watched(self, names: tuple[str, ...], groups: Mapping[str, BoolArray]) -> BoolArray | None:
        """Return the layers that the rule is limited to, (layers,), None if it is to none.

        Args:
            names: (layers,) names.
            groups: As in `Context`.
        """
        return None

    @abstractmethod
    def raised(self, observation: Any, context: Context) -> BoolArray | None:
        """Return what is beyond the raising threshold. Every observation comes by here: be quick.

        Args:
            observation: One of the types that the rule takes.
            context: What is known of the attempt.

        Returns:
            (layers,), or (1,) of a rule about the run; None if nothing is, which takes least time.
        """

    @abstractmethod
    def evaluate(
        self, observation: Any, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield an evaluation per group. Asked only if something is raised, or an alert is active.

        Args:
            observation: One of the types that the rule takes.
            raised: What `raised` returned, less what `yields_to` took away.
            context: What is known of the attempt.
        """
