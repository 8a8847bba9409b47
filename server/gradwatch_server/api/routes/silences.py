"""Silences: alerts that are not to be told for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self

from fastapi import APIRouter, HTTPException
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from gradwatch_server.api.problems import Json
from gradwatch_server.api.routes.alerts import By, Comment
from gradwatch_server.api.state import Api, ApiState
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.alerting.silences import ANY, Silence, fits
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.alert_commands import AddSilence, RemoveSilence

router = APIRouter()

MAX_S: Final = 366 * 86_400.0
"""Longest silence: a year."""

Pattern = Annotated[str, Field(min_length=1, max_length=500)]


class NewSilence(BaseModel):
    """Silence that is asked for: its matchers and its duration."""

    model_config = ConfigDict(extra="forbid")

    run: Pattern = Field(ANY, description="Pattern of names of runs.")
    rule: Pattern = Field(ANY, description="Pattern of names of rules.")
    layers: Pattern = Field(ANY, description="Pattern that all layers of the alert fit.")
    until: AwareDatetime | None = Field(None, description="When it ends, ISO 8601 with a zone.")
    for_s: float | None = Field(
        None, gt=0, le=MAX_S, allow_inf_nan=False, description="Seconds until it ends, instead."
    )
    by: By
    comment: Comment = ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.until is None) == (self.for_s is None):
            msg = "give either until or for_s"
            raise ValueError(msg)
        if self.run == self.rule == self.layers == ANY:
            msg = "give a pattern of run, rule or layers: this would silence everything"
            raise ValueError(msg)
        return self

    def until_ns(self, now_ns: int) -> int:
        """Return when it ends, nanoseconds since the epoch."""
        if self.until is None:
            return now_ns + round((self.for_s or 0.0) * 1e9)
        seconds = (self.until - datetime.fromtimestamp(now_ns / 1e9, UTC)).total_seconds()
        if not 0 < seconds <= MAX_S:
            wanted = f"until: a time within the next {MAX_S / 86_400:.0f} days"
            raise HTTPException(
                422, f"{wanted}, got {self.until.isoformat()}; now is {isotime(now_ns)}"
            )
        return now_ns + round(seconds * 1e9)


@router.get("/silences", summary="Silences in force, oldest first")
async def silences(api: Api) -> Json:
    now_ns = api.now_ns()
    return Json(
        [describe(silence) for silence in api.published.silences if silence.until_ns > now_ns]
    )


@router.post("/silences", status_code=201, summary="Silence the alerts that fit the patterns")
async def add_silence(new: NewSilence, api: Api) -> Json:
    until_ns = new.until_ns(api.now_ns())
    command = AddSilence(new.run, new.rule, new.layers, until_ns, new.by, new.comment)
    silence = await api.command(command)
    views = await api.views.find_all(name for name in api.views.names if fits(silence.run, name))
    return Json(describe(silence) | {"warnings": _warnings(silence, views, api)}, status_code=201)


@router.delete(
    "/silences/{silence}", status_code=204, response_class=Response, summary="End a silence"
)
async def remove_silence(silence: str, api: Api) -> Response:
    await api.command(RemoveSilence(silence))
    return Response(status_code=204)


def describe(silence: Silence) -> dict[str, Any]:
    plain = asdict(silence)
    for name in ("until", "created"):
        plain[f"{name}_at" if name == "created" else name] = isotime(plain.pop(f"{name}_ns"))
    return plain


def _warnings(silence: Silence, views: Sequence[RunView], api: ApiState) -> list[str]:
    """Return what fits nothing that is there now: a slip, or something yet to come."""
    warnings = []
    if not views:
        warnings.append(f"run: no run fits {silence.run!a} now")
    rules = list(api.published.rules.root)
    if not any(fits(silence.rule, name) for name in rules):
        warnings.append(f"rule: no rule fits {silence.rule!a}; the rules are {', '.join(rules)}")
    if views and not any(fits(silence.layers, name) for view in views for name in view.names):
        warnings.append(f"layers: no layer of these runs fits {silence.layers!a} now")
    return warnings
