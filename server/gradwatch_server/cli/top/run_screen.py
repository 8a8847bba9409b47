"""One run: how it is and why, its curves, its worst layers, its alerts."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import DataTable, Static

from gradwatch_server.cli.async_client import AsyncClient
from gradwatch_server.cli.rendering import short
from gradwatch_server.cli.sparkline import sparkline
from gradwatch_server.cli.top.screen import KEYS, LiveScreen
from gradwatch_server.cli.top.snapshot import STEPS, read_run
from gradwatch_server.cli.top.table import LiveTable, name_cell
from gradwatch_server.cli.user import user_name
from gradwatch_server.cli.words import marked, sentences, status_text
from gradwatch_server.core.printable import printable

MAX_REASONS: Final = 5
MAX_NAME: Final = 48
MIN_CURVE: Final = 16
BESIDE_CURVE: Final = 56
"""Characters that the other columns of a layer take, as a rule."""

LAYER_COLUMNS: Final = ("layer", "gone wrong", "norm now", "usual", "newest steps")
ALERT_COLUMNS: Final = ("alert", "rule", "since step", "known by", "message")


class RunScreen(LiveScreen):
    """Everything about a run that helps at one glance.

    Args:
        run: Its name.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "acknowledge", "acknowledge alert"),
        Binding("tab", "app.focus_next", "next table"),
        *KEYS,
    ]
    filter_hint = "names of layers that have this in them"

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run
        self._alerts: dict[str, dict[str, Any]] = {}

    def parts(self) -> list[Widget]:
        """Return the verdict, the curves and two tables."""
        return [
            Static("asking how it is", id="verdict", markup=False),
            Static(id="curves"),
            LiveTable(*LAYER_COLUMNS, name="layers", stays_on_top=True),
            LiveTable(*ALERT_COLUMNS, name="alerts"),
            Static(id="hint"),
        ]

    async def read(self, client: AsyncClient) -> dict[str, Any]:
        """Ask how it is."""
        return await read_run(client, self._run, self.filter_text)

    def draw(self, snapshot: dict[str, Any]) -> str:
        """Show it."""
        report = snapshot["health"]
        firing = [own for own in report["alerts"]["items"] if own["state"] == "firing"]
        firing.sort(key=lambda own: own["severity"] != "critical")
        self._alerts = {own["id"]: own for own in firing}
        self.query_one("#verdict", Static).update(_verdict(report, is_old=self.is_old))
        self.query_one("#curves", Static).update(_curves(snapshot))
        layers, alerts = self.query_one("#layers", LiveTable), self.query_one("#alerts", LiveTable)
        width = min(max(self.size.width - BESIDE_CURVE, MIN_CURVE), STEPS)
        layers.show_rows([(own["name"], _layer(own, width)) for own in snapshot["layers"]])
        alerts.show_rows([(own["id"], _alert(own)) for own in firing])
        alerts.display = bool(firing)
        self._hint()
        return f"run {self._run}"

    def focus_table(self) -> None:
        """Give the keys back to the layers."""
        self.query_one("#layers", LiveTable).focus()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        """Say what is often behind the alert that is chosen."""
        self._hint()

    def _hint(self) -> None:
        alert = self._alerts.get(self.query_one("#alerts", LiveTable).chosen or "")
        hints = alert["hints"] if alert else []
        text = f"often behind it (heuristic): {hints[0]}" if hints else ""
        self.query_one("#hint", Static).update(Text(printable(text), style="dim"))

    def action_acknowledge(self) -> None:
        """Acknowledge the alert that the cursor of their table is on."""
        alert = self._alerts.get(self.query_one("#alerts", LiveTable).chosen or "")
        if alert is None:
            self.app.tell("no alert fires")
        elif alert["acknowledged"]:
            self.app.tell(f"{alert['id']} is known by {alert['acknowledged']['by']} already")
        else:
            self.app.acknowledge(alert["id"], user_name())


def _verdict(report: dict[str, Any], *, is_old: bool) -> Text:
    """Return status and phase, why, and the numbers that go with them."""
    told = sentences(report)
    lines = [status_text(report["status"], report["phase"], is_old=is_old)]
    lines += [Text(f"  {printable(reason)}") for reason in told[:MAX_REASONS]]
    if len(told) > MAX_REASONS:
        lines.append(Text(f"  and {len(told) - MAX_REASONS} further reasons", style="dim"))
    states = [own["state"] for own in report["ranks"]]
    facts = {
        "step": report["step"],
        "score": report["score"]["last"],
        "loss": report["loss"],
        "lr": report["lr"],
        "s/step": report["step_time_s"],
        "layers": report["layers"]["total"],
        "ranks": f"{states.count('alive')} of {report['world']} alive",
        "attempt": report["attempt"],
    }
    known = (f"{name} {_shown(value)}" for name, value in facts.items() if value is not None)
    lines.append(Text(printable("  ".join(known)), style="dim"))
    if report["first_bad"] is not None:
        lines.append(Text(_first_bad(report["first_bad"]), style="dim"))
    return Text("\n").join(lines)


def _first_bad(bad: dict[str, Any]) -> str:
    rank = "" if bad["rank"] is None else f", rank {bad['rank']}"
    layer = f" in {printable(bad['layer'])}" if bad["layer"] else ""
    return f"first NaN or Inf at step {bad['step']:,}{rank}{layer}"


def _shown(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return short(value) if isinstance(value, float) else str(value)


def _curves(snapshot: dict[str, Any]) -> Text:
    """Return total norm and loss over the newest steps."""
    now = {
        "norm": snapshot["health"]["gradient_norm"]["last"],
        "loss": snapshot["health"]["loss"],
    }
    lines = [
        Text.assemble(
            f"{name}  ", sparkline(curve, STEPS), f"  {printable(str(_or_dash(now.get(name))))}"
        )
        for name, curve in snapshot["curves"].items()
        if any(value is not None for value in curve)
    ]
    return Text("\n").join(lines)


def _layer(own: dict[str, Any], width: int) -> list[Text]:
    return [
        name_cell(own["name"], MAX_NAME),
        Text(printable(", ".join(own["gone_wrong"])), style="bold red"),
        Text(_or_dash(own["l2"]), justify="right"),
        Text(_or_dash(own["usual"]), justify="right"),
        sparkline(own["curve"], width),
    ]


def _alert(own: dict[str, Any]) -> list[Text]:
    by = own["acknowledged"]["by"] if own["acknowledged"] else "nobody yet"
    return [
        marked(own["severity"]),
        Text(printable(own["rule"])),
        Text(str(own["first_step"]), justify="right"),
        Text(printable("silenced" if own["silenced"] else by)),
        Text(printable(own["message"])),
    ]


def _or_dash(value: float | str | None) -> str:
    return "-" if value is None else short(value)
