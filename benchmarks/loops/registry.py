"""The loops of the table: one function each, registered by one line in the file of its topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from benchmarks.loops.trial import Trial

TOPICS: Final = (
    "plain",
    "closures",
    "scaling",
    "several",
    "changes",
    "compiled",
    "checkpointing",
    "functional",
    "nanogpt",
    "ddp",
    "fsdp",
    "tensor_parallel",
    "frameworks",
)  # fmt: skip
"""Modules of this package, in the order of the table. Those that need much import it inside."""

Train: TypeAlias = "Callable[[Trial], Any]"

_loops: dict[str, Loop] = {}


@dataclass(frozen=True, slots=True)
class Loop:
    """One row of the table.

    Args:
        name: What the row is called.
        train: Trains, and returns what it trained: a module, or several by name.
        topic: The module that it stands in.
        gives_loss: Whether the loop gives the loss; a framework's callback does it by itself.
        ranks: Processes that train together.
        has_group: Whether the process group is made for it; a framework makes its own.
        is_compiled: Whether anything is compiled, so that graph breaks have a meaning.
        tolerance: Relative difference up to which a norm is right.
    """

    name: str
    train: Train
    topic: str
    gives_loss: bool = True
    ranks: int = 1
    has_group: bool = True
    is_compiled: bool = False
    tolerance: float = 1e-5

    @property
    def slug(self) -> str:
        """The name as a part of run names and file names."""
        letters = (c if c.isalnum() and c.isascii() else "-" for c in self.name.lower())
        return "-".join(filter(None, "".join(letters).split("-")))


def loop(name: str, **settings: Any) -> Callable[[Train], Train]:
    """Register the function below as a row of the table; the settings are those of `Loop`."""

    def register(train: Train) -> Train:
        assert name not in _loops, name
        topic = train.__module__.rpartition(".")[2]
        _loops[name] = Loop(name=name, train=train, topic=topic, **settings)
        return train

    return register


def loops() -> Mapping[str, Loop]:
    """Return all loops by name, in the order of the table."""
    for topic in TOPICS:
        import_module(f"benchmarks.loops.{topic}")
    return dict(_loops)
