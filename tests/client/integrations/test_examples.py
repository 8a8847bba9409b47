"""The examples of docs/train-*.md, run as a person runs them, with a `gradwatch serve`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The addresses of an aggregator process: `http` and `ingest`."""
    command = [sys.executable, "-m", "gradwatch_server", "serve", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [*command, "--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        addresses: dict[str, str] = {}
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.match(r"\s+(\w+)\s+(\S+)", line):
                addresses[match[1]] = match[2]
            if "data" in addresses:
                break
        yield addresses
        process.terminate()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("example", "step"), [("lightning", 10), ("huggingface", 11), ("accelerate", 10)]
)
def test_an_example_is_told_where_it_went_wrong(
    service: dict[str, str], tmp_path: Path, example: str, step: int
) -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "examples" / f"train_{example}.py"],
        env=os.environ
        | {
            "GRADWATCH_ENDPOINT": service["ingest"],
            "OMP_NUM_THREADS": "1",
            "GRADWATCH_OVERHEAD": "",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    url = f"{service['http']}/runs/{example}-example/health"

    def health() -> Any:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)

    def is_told() -> bool:
        rules = [item["rule"] for item in health()["alerts"]["items"]]
        return health()["ranks"][0]["state"] == "ended" and "nonfinite" in rules

    wait_until(is_told, "the run has ended, with an alert")
    report = health()

    assert report["first_bad"]["step"] == step
    assert report["step"] == step + 9
    assert f"(examples/train_{example}.py)" in (DOCS / f"train-{example}.md").read_text("utf-8")
