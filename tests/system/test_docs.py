"""The pages in docs/ and the README keep up with the code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from gradwatch_server.api.app import make_app
from gradwatch_server.cli.app import app
from gradwatch_server.core.alerting.rules.base import Rule
from gradwatch_server.core.alerting.rules.documentation import fill
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.settings import Settings
from gradwatch_wire import SEQUENCED, Kind
from gradwatch_wire.names import STATISTIC_COLUMNS, Label, Scalar

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def _page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_record_has_its_line(kind: Kind) -> None:
    """With its number and whether it is sequenced."""
    rows = _page("protocol.md").splitlines()
    line = next(row for row in rows if row.startswith(f"| {kind.name} "))

    assert f"| {kind.value} |" in line
    assert ("| yes |" in line) == (kind in SEQUENCED)


def test_the_sections_of_the_rules_are_those_of_the_definitions() -> None:
    """If not: scripts/docs writes them."""
    page = _page("rules.md")

    assert fill(page) == page


@pytest.mark.parametrize("rule", list(REGISTRY), ids=lambda rule: rule.name)
def test_every_rule_has_its_section_with_every_key_and_default(rule: type[Rule]) -> None:
    """Those that every rule has stand above all of them."""
    page = _page("rules.md")
    section = page.split(f"\n## {rule.name}\n")[1].split("\n## ")[0]
    common = page.split("\n## ")[0]
    default = rule()

    for key, field in rule.model_fields.items():
        value = getattr(default, key)
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        assert field.description is not None
        assert field.description in common + section
        assert re.search(rf"`{key}`[^\n]*`{re.escape(shown)}`", common + section), key


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_its_line_with_default_and_description(name: str) -> None:
    """In the table of docs/commands.md."""
    field = Settings.model_fields[name]
    default = "" if name == "rules" else f"`{field.default}`"

    assert re.search(
        rf"^\| `{name}` \| {re.escape(default)} ?\| {re.escape(field.description or '')} \|$",
        _page("commands.md"),
        re.MULTILINE,
    )


@pytest.mark.parametrize("command", sorted(get_command(app).commands))  # type: ignore[attr-defined]  # a Group
def test_every_command_has_its_line(command: str) -> None:
    """In the table of docs/commands.md."""
    assert f"`gradwatch {command}" in _page("commands.md")


def test_every_route_has_its_line_and_no_other_has_one(engine_stub: Any) -> None:
    """In the table of docs/http.md."""
    paths = make_app(engine_stub, engine_stub, engine_stub).openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, item in paths.items() for method in item}

    row = re.compile(r"^\| `((?:GET|POST|DELETE) [^`]+)` \|", re.MULTILINE)
    written = set(row.findall(_page("http.md")))

    assert routes == written


@pytest.fixture
def engine_stub() -> Any:
    """The app only asks for these when a request comes."""

    class Nothing:
        board = None

    return Nothing()


def test_the_keys_of_health_are_all_explained() -> None:
    """Read off the function that makes the answer."""
    source = (ROOT / "server/gradwatch_server/core/health.py").read_text("utf-8")
    answer = source.split("def health(")[1].split("\ndef ")[0]
    keys = re.findall(r'^        "(\w+)":', answer, re.MULTILINE)

    explained = set(re.findall(r"`(\w+)`", _page("http.md").split("## Health")[1]))

    assert len(keys) > 15
    assert set(keys) - {"run", "updated_at", "world"} <= explained


STATISTICS: dict[str, Sequence[str]] = {
    "Columns": [column.name for column in STATISTIC_COLUMNS],
    "Scalars": list(Scalar),
    "Labels": list(Label),
    "Paths": ("rows", "triton", "foreach", "public"),
}


@pytest.mark.parametrize("table", STATISTICS)
def test_every_number_label_and_path_has_its_line_and_no_other_has_one(table: str) -> None:
    """In docs/statistics.md."""
    section = _page("statistics.md").split(f"\n## {table}")[1].split("\n## ")[0]
    written = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)

    assert sorted(written) == sorted(STATISTICS[table])


def test_the_client_sends_no_number_and_no_label_that_is_not_explained() -> None:
    assert set(Scalar) == set(STATISTICS["Scalars"])
    assert set(Label) == set(STATISTICS["Labels"])


def test_links_between_pages_lead_somewhere() -> None:
    """Relative links of the README, CONTRIBUTING and docs."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_readme_and_examples_name_existing_scripts() -> None:
    """Each `scripts/...` that the pages tell a person to run is there."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for script in re.findall(r"\bscripts/([a-z]+)\b", page.read_text("utf-8")):
            assert (ROOT / "scripts" / script).exists(), script
