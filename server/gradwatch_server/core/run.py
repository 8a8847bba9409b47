"""Runs: the attempts under one name, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.packing import pack_integer
from gradwatch_server.core.session import Session
from gradwatch_wire import Hello
from gradwatch_wire.session.replayed import is_replayed


@dataclass(slots=True)
class Run:
    """A named run: its attempts, the last of which is current, and its totals."""

    name: str
    created_ns: int
    attempts: list[Attempt] = field(default_factory=list)
    num_stored: int = 0
    num_lost: int = 0

    @property
    def current(self) -> Attempt:
        """The newest attempt."""
        # What comes from a spill file is of the past: the training that runs stays current.
        return next((own for own in reversed(self.attempts) if not own.replayed), self.attempts[-1])

    def attempt_of(self, session: Session) -> Attempt:
        """Return the attempt that a session belongs to."""
        newest = self.attempts[-1]
        if newest.number == session.attempt:  # so it is for nearly every record
            return newest
        return next(own for own in reversed(self.attempts) if own.number == session.attempt)

    def find(self, hello: Hello) -> Attempt | None:
        """Return the attempt that a new session belongs to, None if that is another one."""
        if not self.attempts:
            return None
        candidates = reversed(self.attempts) if is_replayed(hello) else [self.current]
        return next((own for own in candidates if not own.is_another(hello)), None)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data of all but the attempts."""
        return {
            "created_ns": self.created_ns,
            "num_stored": pack_integer(self.num_stored),
            "num_lost": pack_integer(self.num_lost),
        }

    @classmethod
    def from_state_dict(cls, name: str, state: Mapping[str, Any]) -> Self:
        """Return the run that `state_dict` described, without attempts."""
        return cls(
            name,
            state["created_ns"],
            num_stored=int(state["num_stored"]),
            num_lost=int(state["num_lost"]),
        )
