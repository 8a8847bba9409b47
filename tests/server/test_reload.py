"""SIGHUP to a real process: other rules are taken over, wrong ones are not, and it goes on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.aggregator import Aggregator, Serve
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TARGET = '[notify.oncall]\nurl = "json://127.0.0.1:9"\n'
LIMIT_5 = "[rules.exploding]\nlimit = 5\nfor_steps = 1\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "gradwatch.toml"
    file.write_text("window_steps = 64\n")
    return file


@pytest.fixture(params=["named", "found"])
def service(request: Any, serve: Serve, config: Path) -> Aggregator:
    """A process with that file, which `--config` names or which lies where it was started."""
    started: Aggregator = serve("--config", str(config)) if request.param == "named" else serve()
    return started


def hang_up(service: Aggregator, line: str) -> str:
    """Send SIGHUP and return the new line of the log that has these words."""
    before = len(service.errors)
    service.send(signal.SIGHUP)
    wait_until(lambda: line in service.errors[before:], f"a line with {line!r}: {service.errors}")
    return next(
        splitline for splitline in service.errors[before:].splitlines() if line in splitline
    )


def limit(service: Aggregator) -> float:
    rules = {rule["rule"]: rule["settings"] for rule in service.json("/rules")["rules"]}
    return float(rules["exploding"]["limit"])


def fires(service: Aggregator, peer: Any, step: int, norm: float) -> bool:
    """Send a step and tell whether `exploding` fires by it."""
    peer.steps(step, norm)
    service.reaches("gpt", step)
    alerts = service.json("/runs/gpt/alerts", params={"state": "firing"})
    return any(alert["last_step"] == step for alert in alerts)


def test_rules_are_taken_over_and_outlive_a_restart(service: Aggregator, config: Path) -> None:
    """The rules that are wrong change nothing; a run in progress is judged by the new ones."""
    peer = service.peer().attach()
    assert not fires(service, peer, 0, 9.0)
    config.write_text("window_steps = 64\n" + LIMIT_5)
    assert "differ in exploding" in hang_up(service, "rules put in force")
    wait_until(lambda: limit(service) == 5.0, "the rules are shown")
    assert fires(service, peer, 1, 9.0)

    config.write_text("[rules.exploding]\nlimit = -5\n")
    line = hang_up(service, "the rules stay as they are")
    assert "'rules.exploding.limit': Input should be greater than 0, got -5" in line
    config.write_text("[rules.explodng]\n")
    assert "'rules.explodng' is not known; the rules are nonfinite" in hang_up(service, "explodng")
    config.unlink()
    assert f"no config file {config.name}" in hang_up(service, "no config").replace(
        str(config), config.name
    )
    assert fires(service, peer, 2, 9.0)
    assert limit(service) == 5.0

    config.write_text("window_steps = 64\n" + LIMIT_5)
    hang_up(service, "those in force already")
    assert service.stop() == 0
    service.start()
    assert limit(service) == 5.0
    assert "Traceback" not in service.errors


def test_what_needs_a_restart_is_said(serve: Serve, config: Path) -> None:
    service = serve("--config", str(config))
    config.write_text("window_steps = 128\nsession_timeout_s = 5\n" + LIMIT_5 + TARGET)
    line = hang_up(service, "only rules are taken over")

    assert line.endswith("restart for window_steps, session_timeout_s, notify")
    wait_until(lambda: limit(service) == 5.0, "the rules are shown")
    assert service.errors.count("only rules are taken over") == 1


def test_patterns_that_match_nothing_are_told_once(serve: Serve, config: Path) -> None:
    """In the log, and in `/rules` of that run."""
    config.write_text('[rules.exploding]\nlayers = ["h.*"]\n[rules.gain]\nruns = ["other"]\n')
    service = serve()
    peer = service.peer().attach(("a", "b"))
    peer.steps(0, 1.0, 1.0, 1.0)
    service.reaches("gpt", 2)
    rules = {rule["rule"]: rule for rule in service.json("/rules", params={"run": "gpt"})["rules"]}

    warning = "layers ['h.*'] match none of the 2 layers in 0 named groups"
    assert rules["exploding"]["watches"] == {"run": True, "layers": 0, "warning": warning}
    assert rules["vanishing"]["watches"] == {"run": True, "layers": 2, "warning": None}
    assert rules["gain"]["watches"] == {"run": False, "layers": None, "warning": None}
    line = f"rule exploding watches no layer of run gpt: {warning}"
    wait_until(lambda: line in service.errors, "it is told")
    peer.steps(3, 1.0)
    service.reaches("gpt", 3)
    assert service.errors.count(line) == 1

    config.write_text('[rules.exploding]\nlayers = ["x"]\n')
    hang_up(service, "rules put in force")
    wait_until(lambda: "layers ['x'] match none" in service.errors, "it is told of the new ones")


def test_a_hang_up_while_it_starts_does_not_end_it(serve: Serve, config: Path) -> None:
    service = serve()
    for _ in range(20):
        service.send(signal.SIGHUP)
    hang_up(service, "those in force already")

    assert service.stop() == 0
