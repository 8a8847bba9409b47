"""The commands of docs/start.md, run one after the other as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.aggregator import Aggregator
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).parents[2]
BIN: Final = Path(sys.executable).parent


class Command(NamedTuple):
    """A command of the page, and what stands below it as its output."""

    line: str
    output: str


BLOCK: Final = re.compile(
    r"^```bash\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL
)
COMMANDS: Final = [
    Command(block[1].strip(), (block[2] or "").strip())
    for block in BLOCK.finditer((ROOT / "docs" / "start.md").read_text("utf-8"))
]


def _comparable(text: str) -> list[str]:
    """Return lines without what differs from run to run: times, and the last digits of numbers."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
    text = re.sub(r"(step time +)[\d.e-]+", r"\1SECONDS", text)
    text = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", text)
    return [line.rstrip() for line in text.strip().splitlines()]


def _installs(line: str) -> None:
    """A wheel is built, and used from an empty folder, by CI; here the extras are looked up."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (extras,) = re.fullmatch(r"pip install '\.\[([\w,]+)\]'", line).groups()  # type: ignore[union-attr]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_each_command_does_what_the_page_says(aggregator: Aggregator) -> None:
    """In their order; `gradwatch serve` on ports of its own, and the others know of them."""

    def run(line: str) -> str:
        program, *arguments = shlex.split(line)
        done = subprocess.run(
            [BIN / program, *arguments],
            cwd=ROOT,
            env=os.environ
            | {"GRADWATCH_URL": aggregator.url, "GRADWATCH_ENDPOINT": aggregator.ingest}
            | {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "GRADWATCH_OVERHEAD": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert [command.line.split()[0] for command in COMMANDS] == [
        *("pip", "gradwatch", "python", "gradwatch", "gradwatch")
    ]
    install, serve, train, *looks = COMMANDS
    _installs(install.line)
    assert serve.line == "gradwatch serve"
    aggregator.start()
    assert train.line == "python docs/examples/first_run.py"
    assert aggregator.url in run(train.line)
    wait_until(lambda: " ended" in run(looks[0].line), "the run has ended")
    for look in looks:
        assert _comparable(run(look.line)) == _comparable(look.output)
