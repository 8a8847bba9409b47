"""Value classes: dataclasses that mypy takes for frozen, and that cost no more than plain ones.

`dataclass(frozen=True)` sets each field by a call of `object.__setattr__`: an object of 16 fields
then takes nine times as long. That counts for what is made for each record, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(
    *, kw_only: bool = False, eq: bool = True, slots: bool = True
) -> Callable[[type[T]], type[T]]:
    """Return the decorator of a value class; the arguments are those of `dataclass`."""
    return dataclass(kw_only=kw_only, eq=eq, slots=slots)
