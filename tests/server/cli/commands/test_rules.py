"""`gradwatch rules`: the rules in force, the check of a file, and its alerts in a stored run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gradwatch_server.cli.app import app
from tests.support.aggregator import Aggregator

STRICT = "[rules.exploding]\nlimit = 50\nclear_steps = 3\n"
NORMS = (1.0, 200.0, 201.0, 1.0, 1.1, 1.0, 60.0, 61.0, 1.0)


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in a folder with a file `rules.toml`: `invoke("check", "rules.toml")`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.toml").write_text(STRICT)

    def run(*arguments: str, columns: str = "200") -> Result:
        result = CliRunner().invoke(app, ["rules", *arguments], env={"COLUMNS": columns})
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result

    return run


def words(text: str) -> list[list[str]]:
    """Return the cells of each line, which stand two spaces apart."""
    return [re.split(r"  +", line.strip()) for line in text.splitlines() if line.strip()]


def test_a_good_file_is_valid(invoke: Callable[..., Result]) -> None:
    result = invoke("check", "rules.toml")

    assert result.exit_code == 0
    assert result.stdout == "rules.toml: valid; not as by default: exploding\n"
    told = json.loads(invoke("check", "rules.toml", "--json").stdout)
    assert told["rules"]["exploding"]["limit"] == 50.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[rules.explodng]\n", "setting 'rules.explodng' is not known; the rules are nonfinite"),
        ("[rules.gain]\nhih = 1\n", "setting 'rules.gain.hih' is not known; the keys of gain are "),
        ("[rules.gain]\nhigh = -1\n", "setting 'rules.gain.high': Input should be greater than 0"),
        ("[rules.gain]\nruns = 'x'\n", "setting 'rules.gain.runs': Input should be a list of pat"),
        ("[rules", "config file rules.toml: "),
        (None, "no config file rules.toml"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_1(
    invoke: Callable[..., Result], tmp_path: Path, text: str | None, says: str
) -> None:
    file = tmp_path / "rules.toml"
    file.unlink() if text is None else file.write_text(text)
    result = invoke("check", "rules.toml", "--run", "gpt")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"gradwatch: {says}")
    assert result.stderr.count("\n") == 1


def test_without_a_store_the_directory_is_asked_for(invoke: Callable[..., Result]) -> None:
    result = invoke("check", "rules.toml", "--run", "gpt", "--data", "nowhere")

    assert result.exit_code == 1
    assert "there is no nowhere/gradwatch.db; give the aggregator's data" in result.stderr


@pytest.mark.slow
def test_a_stored_run_is_judged_by_other_rules_beside_the_aggregator(
    service: Aggregator, invoke: Callable[..., Result]
) -> None:
    peer = service.peer(run="tuned").attach(("a", "b"))
    peer.steps(0, *NORMS)
    service.reaches("tuned", len(NORMS) - 1)
    arguments = ("check", "rules.toml", "--run", "tuned", "--data", str(service.directory))
    result = invoke(*arguments)

    assert result.exit_code == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first.startswith(
        "tuned/1 steps 1 to 2 resolved warning exploding: Exploding since step 1 "
    )
    assert second.startswith("tuned/1 steps 6 to 7 firing info exploding: Exploding since step 6 ")
    alerts = [json.loads(line) for line in invoke(*arguments, "--json").stdout.splitlines()]
    assert [alert["resolved_step"] for alert in alerts] == [5, None]


@pytest.mark.slow
def test_the_rules_in_force_are_shown(service: Aggregator, invoke: Callable[..., Result]) -> None:
    service.peer(run="shown").attach(("a", "b")).steps(0, 1.0)
    service.reaches("shown", 0)
    lines = words(invoke("--url", service.url).stdout)
    shown = words(invoke("--url", service.url, "--run", "shown").stdout)
    told = json.loads(invoke("--url", service.url, "--json").stdout)

    assert lines[0] == ["rule", "severity", "for", "clear", "settings"]
    assert ["exploding", "warning", "1", "16", "limit 100.0"] in lines
    assert ["exploding", "warning", "1", "16", "limit 100.0", "2 layers"] in shown
    assert [rule["rule"] for rule in told["rules"]] == [line[0] for line in lines[1:-1]]
    assert lines[-1] == ["false_alerts_per_100k_steps 5"]
    missing = invoke("--url", service.url, "--run", "gpx")
    assert missing.exit_code == 1
    assert missing.stderr.startswith("gradwatch: no run 'gpx'; known runs: ")
