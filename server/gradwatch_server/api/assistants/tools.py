"""Six tools. Each asks the HTTP API, leaves out what is long, and adds the address of the page.

Nothing is changed by any of them, and nothing is known here that a GET does not say.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import quote

import httpx
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ToolAnnotations
from pydantic import Field
from starlette.types import ASGIApp

from gradwatch_wire import __version__
from gradwatch_wire.run_page import run_page

Answer: TypeAlias = dict[str, Any]

Run = Annotated[str, Field(description="Name of a run, as `runs` lists it.")]

INSTRUCTIONS: Final = """\
gradwatch measures every layer's gradient on every rank of a PyTorch training and raises alerts.
Begin with `runs` (bad ones come first), then `health` of a run, then `explain_alert` with the id of
an alert. Steps count from 0. Null means not known: do not guess a rank, layer or step. Numbers that
JSON has not are the strings "NaN", "Infinity", "-Infinity". Give people the addresses in `page`."""

RUN_KEYS: Final = (
    "run",
    "status",
    "phase",
    "step",
    "reason",
    "loss",
    "norm",
    "world",
    "updated_at",
)

HEALTH_KEYS: Final = (
    *("run", "attempt", "phase", "status", "reasons", "step", "last_good_step", "gradient_norm"),
    *("loss", "lr", "step_time_s", "pace", "layers", "records", "first_bad"),
)

ALERT_KEYS: Final = (
    *("id", "run", "rule", "severity", "state", "message", "first_step", "last_step"),
    *("resolved_step", "ranks", "num_layers", "part_of", "updated_at"),
)

RANK_KEYS: Final = ("rank", "state", "last_step", "last_seen_s", "host", "reason")

EMPTY: Final[tuple[object, ...]] = (None, "", [])

COMPARED: Final = ("loss", "norm", "lr")

MAX_NAMES: Final = 5
"""Layers or ranks that an answer names."""

READ_ONLY: Final = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)


def pick(answer: Mapping[str, Any], keys: Sequence[str]) -> Answer:
    return {key: answer[key] for key in keys if key in answer}


class Tools:
    """Six tools over the app that answers HTTP."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.all = (
            self.runs,
            self.health,
            self.alerts,
            self.layer,
            self.explain_alert,
            self.compare,
        )

    async def runs(
        self,
        context: Context,
        name: Annotated[str, Field(description="Only runs with this text in their name.")] = "",
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> str:
        """List the runs: those that are in trouble first, each with the reason."""
        summaries = await self._get("/runs", sort="worst", q=name or None, limit=limit, spark=1)
        return _text([pick(run, RUN_KEYS) | _page(context, run["run"]) for run in summaries])

    async def health(self, context: Context, run: Run) -> str:
        """Tell how a run is: status and reasons, where it went wrong first, which ranks are bad."""
        answer = await self._health(run)
        bad = [rank for rank in answer["ranks"] if rank["state"] not in {"alive", "ended"}]
        return _text(
            {
                **pick(answer, HEALTH_KEYS),
                "worst_layers": answer["worst_layers"][:MAX_NAMES],
                "num_bad_ranks": len(bad),
                "bad_ranks": [pick(rank, RANK_KEYS) for rank in bad[:MAX_NAMES]],
                "alerts": [pick(alert, ALERT_KEYS) for alert in answer["alerts"]["items"]],
                **_page(context, run),
            }
        )

    async def alerts(
        self,
        context: Context,
        after: Annotated[int, Field(ge=0, description="`cursor` of the answer before.")] = 0,
        run: Annotated[str | None, Field(description="Only this run.")] = None,
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> str:
        """List alert events since a cursor, oldest first, and the cursor to go on from."""
        events = await self._get("/alerts", after=after, run=run, limit=limit)
        shown = [
            pick(event, ("cursor", *ALERT_KEYS)) | _page(context, event["run"], alert=event["id"])
            for event in events
        ]
        newest = events[-1]["cursor"] if events else after
        return _text({"events": shown, "cursor": newest})

    async def layer(
        self,
        context: Context,
        run: Run,
        layer: Annotated[str, Field(description="Name of a parameter, as PyTorch has it.")],
        last: Annotated[int, Field(ge=1, le=100_000, description="Newest steps to look at.")] = 512,
        points: Annotated[int, Field(ge=2, le=128)] = 32,
    ) -> str:
        """Return the curve of a layer's gradient norm, and the norm that was usual at each step."""
        columns = {"column": ["l2", "usual"], "layer": layer, "last": last, "points": points}
        answer = await self._get(_path(run, "series"), **columns)
        norm, usual = answer["series"]
        return _text(
            {
                **pick(answer, ("run", "attempt", "last_step", "width", "step")),
                "layer": norm["layer"],
                **pick(norm, ("min", "max", "last", "n", "nan", "inf")),
                "usual": usual["last"],
                **_page(context, run),
            }
        )

    async def explain_alert(
        self, context: Context, alert: Annotated[str, Field(description="The 16 digits of its id.")]
    ) -> str:
        """Explain an alert: cause, norms before and after, last good step, hints, its rule."""
        answer = await self._get(f"/alerts/{quote(alert, safe='')}")
        rules = (await self._get("/rules"))["rules"]
        rule: Answer = next((each for each in rules if each["rule"] == answer["rule"]), {})
        return _text(
            {
                **pick(answer, (*ALERT_KEYS, "last_good_step", "hints")),
                "layers": answer["layers"][:MAX_NAMES],
                "origin": {
                    key: value for key, value in answer["origin"].items() if value not in EMPTY
                },
                **pick(rule, ("raised_when", "to_tune_it")),
                **_page(context, answer["run"], alert=answer["id"]),
            }
        )

    async def compare(
        self,
        context: Context,
        run: Run,
        beside: Annotated[str, Field(description="The run to compare with.")],
        points: Annotated[int, Field(ge=2, le=64)] = 16,
    ) -> str:
        """Compare two runs over the steps that both have: loss, norm, learning rate, faults."""
        names = (run, beside)
        known = {name: await self._health(name) for name in names}
        last = min(
            report["step"] if report["step"] is not None else -1 for report in known.values()
        )
        curves: Answer = {}
        if last >= 0:
            query: Answer = {"column": list(COMPARED), "from": 0, "to": last, "points": points}
            for name in names:
                answer = await self._get(_path(name, "series"), **query)
                series = {curve["column"]: curve["last"] for curve in answer["series"]}
                curves[name] = {"step": answer["step"], **series}
        keys = ("status", "reasons", "step", "first_bad", "loss", "lr")
        return _text(
            {
                "last_common_step": last if last >= 0 else None,
                "health": {name: pick(report, keys) for name, report in known.items()},
                "curves": curves,
                "pages": [_page(context, name)["page"] for name in names],
            }
        )

    async def _health(self, run: str) -> Answer:
        """Return the health of a run, with the first few of the layers that were bad first."""
        answer: Answer = await self._get(_path(run, "health"))
        if answer["first_bad"] is not None:
            answer["first_bad"]["layers"] = answer["first_bad"]["layers"][:MAX_NAMES]
        return answer

    async def _get(self, path: str, **query: Any) -> Any:
        """Return what the API answers.

        Raises:
            ToolError: If that is an error, with what the API says of it.
        """
        given = {name: value for name, value in query.items() if value is not None}
        answer = await self._http.get(path, params=given)
        if answer.is_error:
            raise ToolError(str(answer.json().get("detail", answer.reason_phrase)))
        return answer.json()


def _text(answer: Answer | list[Answer]) -> str:
    """Return an answer as an assistant reads it: no blanks, and no second copy beside the text."""
    return json.dumps(answer, separators=(",", ":"))


def _path(run: str, rest: str) -> str:
    return f"/runs/{quote(run, safe='')}/{rest}"


def _page(context: Context, run: str, **more: str) -> Answer:
    """Return the address of the page under the name by which the assistant called."""
    request = context.request_context.request
    base = str(request.base_url).rstrip("/") if request is not None else ""
    return {"page": run_page(base, run, **more)}


@contextlib.asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[ASGIApp]:
    """Yield the app that speaks the protocol, over one that answers HTTP.

    Each request stands alone: no session and no stream stays open between two of them.
    """
    for name in ("mcp", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    server: MCPServer[Any] = MCPServer(
        "gradwatch", version=__version__, instructions=INSTRUCTIONS, subscriptions=False
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gradwatch") as http:
        for tool in Tools(http).all:
            server.add_tool(tool, annotations=READ_ONLY, structured_output=False)
        # Which names this aggregator may be called by was looked at before.
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        made = server.streamable_http_app(
            stateless_http=True, json_response=True, transport_security=security
        )
        async with server.session_manager.run():
            yield made
