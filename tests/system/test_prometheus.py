"""A real Prometheus beside a real aggregator and a real training: metrics, rules, dashboard."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from gradwatch_server.api.metrics.definitions import METRICS
from gradwatch_server.keys import make_keys, read_keys
from tests.support.aggregator import Aggregator
from tests.support.job import Job
from tests.support.ports import ReservedPort
from tests.support.programs import program
from tests.support.waiting import PATIENCE_S, wait_until

DEPLOY: Final = Path(__file__).parents[2] / "deploy" / "prometheus"


class Prometheus:
    """One process.

    Args:
        directory: Where configuration and data are put.
        target: Host and port that are scraped, once a second.
        token: What the aggregator asks for; None for nothing.
    """

    def __init__(self, directory: Path, target: str, token: str | None = None) -> None:
        binary = program("prometheus", "prometheus")
        directory.mkdir()
        (directory / "prometheus.yml").write_text(_config(directory, target, token))
        rules = (DEPLOY / "gradwatch.rules.yml").read_text("utf-8")
        (directory / "gradwatch.rules.yml").write_text(rules)
        self._port = ReservedPort()
        self.url = f"http://127.0.0.1:{self._port.number}"
        self._log = directory / "log.txt"
        # The port is bound until here, but Prometheus does not share it.
        self._port.close()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    binary,
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port.number}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._answers, "Prometheus answers")

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text("utf-8")
        try:
            return httpx.get(f"{self.url}/-/ready", trust_env=False).is_success
        except httpx.TransportError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """Return what the HTTP API answers."""
        answer = httpx.get(
            f"{self.url}/api/v1/{path}", params=parameters, timeout=PATIENCE_S, trust_env=False
        )
        body: dict[str, Any] = answer.json()
        assert body["status"] == "success", f"{parameters}: {body}"
        return body["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], str]]:
        """Return the labels and the value of each series of an expression at this moment."""
        result = self.ask("query", query=expression)["result"]
        return [(own["metric"], own["value"][1]) for own in result]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)


def _config(directory: Path, target: str, token: str | None) -> str:
    """Return the configuration as it is delivered, for this target and a test's patience."""
    text = (DEPLOY / "prometheus.yml").read_text("utf-8")
    changes = {"aggregator:8420": target, ": 15s": ": 1s"}
    if token is not None:
        (directory / "token").write_text(token)
        changes[
            "    # authorization:\n    #   credentials_file: /etc/prometheus/gradwatch.token"
        ] = f"    authorization:\n      credentials_file: {directory / 'token'}"
    for before, after in changes.items():
        assert before in text, before
        text = text.replace(before, after)
    return text.partition("# Leave this out")[0]  # no Alertmanager runs


pytestmark = pytest.mark.slow

RUN: Final = "scraped"
DASHBOARD: Final = DEPLOY.parent / "grafana" / "dashboards" / "gradwatch.json"
VARIABLES: Final = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*", "$run": RUN}


@pytest.fixture(scope="module")
def aggregator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aggregator]:
    """An aggregator with a run whose gradient was NaN at one step, and which holds after it."""
    program("prometheus", "prometheus")
    made = Aggregator(tmp_path_factory.mktemp("scraped") / "data")
    made.start()
    faulty = ("--fault", "local-weight", "--fault-step", "20", "--hold-at", "22")
    worker = Path(__file__).with_name("worker.py")
    job = Job(worker, 1, made.ingest, ("--run", RUN, *faulty))
    wait_until(lambda: made.get(f"/runs/{RUN}").is_success, "the run is there")
    made.reaches(RUN, 21)
    yield made
    job.kill()
    made.close()


@pytest.fixture(scope="module")
def prometheus(
    aggregator: Aggregator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    directory = tmp_path_factory.mktemp("prometheus") / "prometheus"
    made = Prometheus(directory, aggregator.url.removeprefix("http://"))
    scraped_twice = f'count_over_time(gradwatch_run_step{{run="{RUN}"}}[5m]) >= 2'
    wait_until(lambda: made.query(scraped_twice), "two scrapes")
    yield made
    made.close()


def test_prometheus_has_what_the_aggregator_says(
    aggregator: Aggregator, prometheus: Prometheus
) -> None:
    health = aggregator.health(RUN)

    def value(name: str, **labels: str) -> float:
        chosen = ", ".join(f'{key}="{value}"' for key, value in {"run": RUN, **labels}.items())
        ((_, found),) = prometheus.query(f"gradwatch_run_{name}{{{chosen}}}")
        return float(found)

    assert value("step") == health["step"] == 21
    assert value("gradient_norm") == health["gradient_norm"]["last"]
    assert value("loss") == health["loss"]
    assert value("learning_rate") == health["lr"] == 0.01
    assert value("nonfinite_steps") == 1
    assert value("lowest_score") == 0
    assert value("status", status="critical") == 1
    assert value("rule_alerts_firing", rule="nonfinite") == 1
    assert value("ranks", state="alive") == 1
    assert value("records_total", outcome="stored") == health["records"]["stored"]


def test_prometheus_knows_type_and_help_of_every_metric(prometheus: Prometheus) -> None:
    known = prometheus.ask("metadata")
    own = {name: about[0] for name, about in known.items() if name.startswith("gradwatch_")}
    table = {each.name: each for each in METRICS}

    assert own.keys() == table.keys()
    assert {(name, about["type"], about["help"]) for name, about in own.items()} == {
        (each.name, each.type, each.what) for each in table.values()
    }


def test_the_rules_are_loaded_and_the_one_of_a_critical_run_fires(prometheus: Prometheus) -> None:
    groups = prometheus.ask("rules")["groups"]
    assert [len(group["rules"]) for group in groups] == [11, 4]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}

    def firing() -> list[tuple[str, str]]:
        alerts = prometheus.ask("alerts")["alerts"]
        labels = [alert["labels"] for alert in alerts if alert["state"] == "firing"]
        return [(label["alertname"], label.get("run", "")) for label in labels]

    wait_until(firing, "an alert fires")
    assert firing() == [("GradwatchRunCritical", RUN)]


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (("check", "config"), "prometheus.yml"),
        (("check", "rules"), "gradwatch.rules.yml"),
        (("test", "rules"), "gradwatch.rules.test.yml"),
    ],
)
def test_promtool_takes_the_files(command: tuple[str, ...], file: str) -> None:
    done = subprocess.run(
        [program("promtool", "prometheus"), *command, DEPLOY / file],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_test_in_which_it_fires() -> None:
    rules = re.findall(r"- alert: (\w+)", (DEPLOY / "gradwatch.rules.yml").read_text("utf-8"))
    tests = (DEPLOY / "gradwatch.rules.test.yml").read_text("utf-8")

    assert len(rules) == 15
    for rule in rules:
        assert re.search(rf"alertname: {rule}\n +exp_alerts:", tests), rule


def _panels() -> Iterator[dict[str, Any]]:
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        if panel["type"] != "row":
            yield panel


def _expressions() -> list[tuple[str, str]]:
    return [
        (f"{panel['title']} {target['refId']}", target["expr"])
        for panel in _panels()
        for target in panel["targets"]
    ]


@pytest.mark.parametrize(("panel", "expression"), _expressions(), ids=lambda text: str(text)[:40])
def test_each_expression_of_the_dashboard_is_answered(
    prometheus: Prometheus, panel: str, expression: str
) -> None:
    """Parsed, of metrics that there are, and with something to show."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    names = set(re.findall(r"\bgradwatch_\w+", expression))
    known = {own.name for own in METRICS}
    found = prometheus.query(expression)

    assert {name.removesuffix("_bucket") for name in names} <= known
    assert found, panel


def test_the_dashboard_asks_only_through_its_variables() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    variables = {own["name"]: own for own in dashboard["templating"]["list"]}

    assert set(variables) == {"datasource", "job", "instance", "run"}
    for panel in _panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["title"]
    for _, expression in _expressions():
        per_run = expression.count("gradwatch_run_")
        assert expression.count('run=~"$run"') == per_run, expression
        metrics = len(re.findall(r"\b(?:gradwatch|process)_\w+", expression))
        assert expression.count('instance=~"$instance"') == metrics, expression


def test_the_variables_of_the_dashboard_have_values(prometheus: Prometheus) -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    for own in dashboard["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", own["query"]["query"])
        assert asked is not None
        series = re.sub(r"\$\w+", ".*", asked[1])
        assert prometheus.ask(f"label/{asked[2]}/values", **{"match[]": series}), own["name"]


def test_a_token_is_read_from_a_file(tmp_path: Path) -> None:
    """The variant that the configuration has in a comment, of an aggregator with keys."""
    program("prometheus", "prometheus")
    keys = tmp_path / "keys"
    make_keys(keys)
    with closing(Aggregator(tmp_path / "data", "--keys-dir", str(keys))) as made:
        made.start()
        target = made.url.removeprefix("http://")
        token = read_keys(keys).tokens.read
        with closing(Prometheus(tmp_path / "prometheus", target, token)) as scraping:
            wait_until(lambda: scraping.query('up{job="gradwatch"} == 1'), "a scrape let in")
