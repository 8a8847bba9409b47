"""The tables in docs/http.md: every route of `/openapi.json`, an example, and all parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gradwatch_server.api.app import make_app
from gradwatch_server.budgets import BudgetUse

BEGIN: Final = "<!-- All routes, written by scripts/docs. -->\n"

HEAD: Final = "| route | answer | example |\n|---|---|---|\n"
PARAMETERS_HEAD: Final = "| parameter | of | meaning |\n|---|---|---|\n"

NAMES: Final = {"run": "gpt2-small", "step": "6", "alert": "ALERT", "silence": "SILENCE"}
"""Names in the examples."""

EXAMPLES: Final = {
    "GET /runs": "?sort=worst&limit=50&spark=32",
    "GET /rules": "?run=gpt2-small",
    "GET /alerts": "?after=0&state=firing",
    "GET /alerts/latest": "?firing=true",
    "GET /alerts/stream": "?run=gpt2-small",
    "GET /alerts/{alert}/layers": "?limit=100",
    "GET /runs/{run}/alerts": "?state=firing",
    "GET /runs/{run}/layers": "?q=weight",
    "GET /runs/{run}/series": "?column=norm&column=loss&last=512",
    "GET /runs/{run}/heatmap": "?column=l2&columns=256&format=safetensors",
    "GET /runs/{run}/frames/{step}": "?worst=5",
    "GET /runs/{run}/rows": "?column=l2&layer=-&limit=100",
    "DELETE /runs/{run}": "?confirm=gpt2-small",
    "POST /alerts/{alert}/ack": ' -d {"by": "ada"}',
    "POST /silences": ' -d {"rule": "vanishing", "for_s": 7200, "by": "ada"}',
}
"""Route to the query, or the body, of its example."""


class _Idle:
    """Stand-in for an engine: this app is described, and serves no request."""

    published = None
    budget_use = BudgetUse()


def table() -> str:
    """Return two tables: all routes, and all parameters of queries and keys of bodies."""
    idle: Any = _Idle()
    described = make_app(idle, idle, idle).openapi()
    rows, routes_of = [HEAD], dict[tuple[str, str], list[str]]()
    for name, route in routes(described):
        rows.append(f"| `{name}` | {route['summary']} | `{example(name)}` |\n")
        for parameter in _parameters(route, described):
            routes_of.setdefault(parameter, []).append(f"`{name.partition(' ')[2]}`")
    rows += ["\n", PARAMETERS_HEAD]
    for (name, meaning), paths in sorted(routes_of.items()):
        rows.append(f"| `{name}` | {', '.join(paths)} | {meaning} |\n")
    return "".join(rows)


def routes(described: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield method and path of each route, and its description."""
    for path, item in described["paths"].items():
        for method, route in item.items():
            yield f"{method.upper()} {path}", route


def example(name: str) -> str:
    """Return the path of an example, with its query or its body."""
    return name.partition(" ")[2].format_map(NAMES) + EXAMPLES.get(name, "")


def _parameters(
    route: Mapping[str, Any], described: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the name and the meaning of each parameter of the query or key of the body."""
    for own in route.get("parameters", ()):
        if own["in"] != "path":
            yield own["name"], own.get("description") or own["schema"].get("description", "")
    if "requestBody" in route:
        schema = route["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        body = described["components"]["schemas"][schema.rpartition("/")[2]]["properties"]
        for key, own in body.items():
            yield key, own.get("description", "")
