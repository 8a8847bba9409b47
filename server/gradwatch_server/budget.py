"""A budget: one line of the table of all budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, Self, cast

from pydantic import Field
from pydantic.fields import FieldInfo

Unit = Literal["bytes", "s", "count", "per min", "share"]
Per = Literal["all", "client", "peer", "address", "run", "attempt", "session"]

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

UNLIMITED: Final = 1 << 50
"""More than anything can use."""


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget.

    Args:
        name: That of the setting.
        default: What may be used.
        unit: What is counted.
        per: Whose use is counted: `all` is that of all peers together, a `client` has a key of its
            own, a `peer` is a connection to the ingest port, an `address` is that of a caller of
            HTTP.
        what: What it is.
        why: Why this default.
        at_limit: What happens at the limit.
        is_logged: Whether alerts may depend on it: then it is a fact of the log.
    """

    name: str
    default: float
    unit: Unit
    per: Per
    what: str
    why: str
    at_limit: str
    is_logged: bool = False

    @classmethod
    def of(cls, name: str, setting: FieldInfo, *, is_logged: bool) -> Self:
        """Return the budget that `field` declared under a name."""
        about = cast("dict[str, Any]", setting.json_schema_extra)
        what = setting.description or ""
        return cls(name, setting.default, what=what, is_logged=is_logged, **about)

    def shown(self) -> str:
        """Return the default for people: `64 MiB`, `60 per min`, `1,000`, `0.5`."""
        if self.unit == "bytes":
            sizes = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "bytes"))
            size, name = next(own for own in sizes if self.default >= own[0])
            return f"{self.default / size:g} {name}"
        unit = "" if self.unit in ("count", "share") else f" {self.unit}"
        return f"{self.default:,g}{unit}"


def field(
    default: float,
    unit: Unit,
    per: Per,
    what: str,
    *,
    why: str,
    at_limit: str,
    least: float = 1,
    most: float = UNLIMITED,
) -> Any:
    """Declare a budget of a model; the arguments are those of `Budget`, and the bounds allowed."""
    return Field(
        default,
        ge=least,
        le=most,
        allow_inf_nan=False,
        description=what,
        json_schema_extra={
            "unit": unit,
            "per": per,
            "why": why,
            "at_limit": at_limit,
        },
    )
