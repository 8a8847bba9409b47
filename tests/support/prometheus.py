"""A real Prometheus that scrapes an aggregator, with the configuration of deploy/prometheus."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

import httpx

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
        """End the process."""
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
