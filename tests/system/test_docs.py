"""The pages in docs/ and the README keep up with the code."""

from __future__ import annotations

import json
import math
import re
import runpy
from pathlib import Path

import httpx
import pytest
from typer.main import get_command

from gradwatch_server.budgets import Budgets
from gradwatch_server.cli.app import app
from gradwatch_server.core.alerting.alert import Acknowledgement, Alert, Update, WorstValue
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.base import Rule
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.settings import Settings, load_settings
from gradwatch_wire import SEQUENCED, Bye, Kind
from gradwatch_wire.columns import STATISTIC_COLUMNS
from gradwatch_wire.names import Label, Scalar
from tests.support.aggregator import Aggregator
from tests.support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TABLES = runpy.run_path(str(ROOT / "scripts" / "tables.py"))
RULES = runpy.run_path(str(ROOT / "scripts" / "ruletables.py"))
between = RULES["between"]


def _page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_record_has_its_line(kind: Kind) -> None:
    rows = _page("protocol.md").splitlines()
    line = next(row for row in rows if row.startswith(f"| {kind.name} "))

    assert f"| {kind.value} |" in line
    assert ("| yes |" in line) == (kind in SEQUENCED)


@pytest.mark.parametrize("name", ["alerts.md", "rules.md"])
def test_what_is_said_of_the_rules_is_that_of_the_definitions(name: str) -> None:
    page = _page(name)

    assert RULES["fill"](page) == page


@pytest.mark.parametrize(
    ("page", "begin", "table"),
    [
        ("operations.md", "BUDGET_TABLE", "budgets"),
        ("doctor.md", "CHECK_TABLE", "checks"),
        ("metrics.md", "METRIC_TABLE", "metrics"),
        ("notifications.md", "TARGET_TABLE", "targets"),
    ],
)
def test_a_table_is_that_of_the_definitions(page: str, begin: str, table: str) -> None:
    text = _page(page)

    assert text.count(TABLES[begin]) == 1
    assert between(text, TABLES[begin], "\n" + TABLES[table]()) == text


@pytest.mark.parametrize("rule", list(REGISTRY), ids=lambda rule: rule.name)
def test_every_rule_says_when_it_raises_how_it_is_tuned_and_where_it_comes_from(
    rule: type[Rule],
) -> None:
    assert all((rule.formula, rule.tuning, rule.source)), rule.name
    limit = {"limit", "clear", "low", "high", "share"}.intersection(rule.model_fields)
    assert all(re.search(rf"`[^`]*\b{key}\b[^`]*`", rule.formula) for key in limit)


def test_the_benchmark_has_its_place() -> None:
    assert _page("alerts-measured.md").count("\n<!-- benchmark -->\n") == 1


def _settings_of(text: str, folder: Path) -> Settings:
    (folder / "gradwatch.toml").write_text(text)
    return load_settings(folder / "gradwatch.toml")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_settings_files_in_the_pages_are_valid(page: Path, tmp_path: Path) -> None:
    for text in re.findall(
        r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
        if "[rules" in text:
            assert _settings_of(text, tmp_path).rules != Rules(), text
        if "[notify" in text:
            assert _settings_of(text, tmp_path).notify.root, text
        if "[budgets" in text:
            assert _settings_of(text, tmp_path).budgets != Budgets(), text


def test_the_example_of_a_settings_file_does_what_it_says(tmp_path: Path) -> None:
    rules = _settings_of((DOCS / "examples" / "gradwatch.toml").read_text("utf-8"), tmp_path).rules
    names = ("h.0.attn.key.bias", "h.0.attn.key.weight", "lm_head.weight")

    def watched(rule: str, run: str = "gpt") -> list[bool]:
        mask = rules[rule].watched(names, {})
        assert mask is not None
        return mask.tolist() if rules[rule].watches(run) else []

    assert watched("exploding") == [True, True, False]
    assert watched("vanishing") == [False, False, True]
    assert not rules["nonfinite"].watches("scratch-1")
    assert not rules["gain"].enabled
    assert "(examples/gradwatch.toml)" in _page("alerts.md")


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_its_line_with_default_and_description(name: str) -> None:
    field = Settings.model_fields[name]
    default = "" if name in ("budgets", "rules", "notify") else f"`{field.default}`"

    assert re.search(
        rf"^\| `{name}` \| {re.escape(default)} ?\| {re.escape(field.description or '')} \|$",
        _page("commands.md"),
        re.MULTILINE,
    )


@pytest.mark.parametrize("command", sorted(get_command(app).commands))  # type: ignore[attr-defined]  # a Group
def test_every_command_has_its_line(command: str) -> None:
    assert f"`gradwatch {command}" in _page("commands.md")


def test_every_option_has_its_line() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "optiontable.py"))
    options = list(script["options"]())

    page = _page("commands.md")
    assert between(page, script["BEGIN"], "\n" + script["table"]()) == page
    assert len(options) > 30
    assert [path for path, option in options if not option.help] == []


def test_every_environment_variable_of_the_server_is_in_a_page() -> None:
    sources = (ROOT / "server").rglob("*.py")
    used = {
        name
        for source in sources
        for name in re.findall(r'"(GRADWATCH_[A-Z]+)"', source.read_text("utf-8"))
    }
    pages = "".join(page.read_text("utf-8") for page in DOCS.glob("*.md"))

    assert len(used) >= 3
    assert {name for name in used if f"`{name}`" not in pages} == set()


ROUTES = runpy.run_path(str(ROOT / "scripts" / "routetable.py"))


def test_the_tables_of_routes_are_those_of_openapi() -> None:
    page = _page("http.md")

    assert page.count(ROUTES["BEGIN"]) == 1
    assert between(page, ROUTES["BEGIN"], "\n" + ROUTES["table"]()) == page
    assert not re.search(r"^\|[^|]*\|[^|]*\| \|$", ROUTES["table"](), re.MULTILINE)


@pytest.mark.slow
def test_the_example_of_each_route_is_answered(aggregator: Aggregator) -> None:
    aggregator.start()
    peer = aggregator.peer(run=ROUTES["NAMES"]["run"]).attach()
    peer.steps(0, *[1.0] * 7, math.nan)
    alert = wait_until(lambda: aggregator.json("/alerts"), "an alert")[0]["id"]
    examples = dict.fromkeys(name for name, _ in ROUTES["routes"](aggregator.json("/openapi.json")))
    last = [name for name in examples if name.startswith("DELETE")]
    silence = ""

    for name in [*(examples.keys() - last), *sorted(last, reverse=True)]:
        if name == "DELETE /runs/{run}":
            peer.send(Bye(reason="closed"))
            peer.acked()
        path, _, body = ROUTES["example"](name).partition(" -d ")
        path = path.replace("ALERT", alert).replace("SILENCE", silence)
        content = {"content": body, "headers": {"Content-Type": "application/json"}} if body else {}
        method, url = name.partition(" ")[0], aggregator.url + path
        with httpx.stream(method, url, timeout=PATIENCE_S, **content) as answer:
            assert answer.is_success, (name, answer.read())
            if name == "POST /silences":
                silence = json.loads(answer.read())["id"]


def test_the_keys_of_an_alert_are_all_explained_and_no_other_is() -> None:
    section = _page("http.md").split("\n## Alerts\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`([a-z_]+)`", row)}
    further = {
        key for own in (Origin, Update, WorstValue, Acknowledgement) for key in own.__slots__
    }

    added = {"hints", "num_ranks", "fired_at", "updated_at"}
    shown = {*Alert.__slots__, *added} - {"fired_ns", "updated_ns", "body_bytes"}
    assert keys == shown
    assert further - {"at_ns"} <= set(re.findall(r"`(?:origin\.)?([a-z_]+)`", section))


@pytest.mark.slow
def test_the_keys_of_health_are_all_explained(aggregator: Aggregator) -> None:
    aggregator.start()
    peer = aggregator.peer().attach()
    peer.steps(0, 1.0)
    aggregator.shows(peer)
    keys = set(aggregator.health(peer.greeting.run))

    explained = set(re.findall(r"`(\w+)`", _page("http.md").split("## Health")[1]))

    assert len(keys) > 15
    assert keys - {"run", "updated_at", "world"} <= explained


STATISTICS: dict[str, list[str]] = {
    "Columns": [column.name for column in STATISTIC_COLUMNS],
    "Scalars": list(Scalar),
    "Labels": list(Label),
    "Paths": ["rows", "triton", "foreach", "public"],
}


@pytest.mark.parametrize("table", STATISTICS)
def test_every_number_label_and_path_has_its_line_and_no_other_has_one(table: str) -> None:
    section = _page("statistics.md").split(f"\n## {table}")[1].split("\n## ")[0]
    written = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)

    assert sorted(written) == sorted(STATISTICS[table])
