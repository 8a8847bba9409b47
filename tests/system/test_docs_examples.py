"""Code in the pages: it compiles, excerpts are those of their files, and tests run the files."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.aggregator import Aggregator
from tests.support.waiting import PATIENCE_S, wait_until

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
EXAMPLES: Final = sorted((DOCS / "examples").glob("*.*"))
PAGES: Final = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
BLOCK: Final = re.compile(
    r"(?:^<!-- from (\S+) -->\n\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL
)
SKIPPED: Final = re.compile(r"^ *\.\.\.,?\n", re.MULTILINE)


class Block(NamedTuple):
    """A block of Python in a page, and the file that it is said to be from."""

    page: str
    file: str | None
    code: str


BLOCKS: Final = [
    Block(page.name, *found.groups())
    for page in PAGES
    for found in BLOCK.finditer(page.read_text("utf-8"))
]
EXCERPTS: Final = [block for block in BLOCKS if block.file is not None]

RUN: Final = {
    "ddp": "torchrun --standalone --nproc-per-node 2 docs/examples/train_ddp.py",
    "amp": "python docs/examples/train_amp.py",
    "compile": "python docs/examples/train_compile.py --backend aot_eager",
    "fsdp2": "torchrun --standalone --nproc-per-node 2 docs/examples/train_fsdp2.py",
    "ray": "python docs/examples/train_ray.py",
}
"""Examples that are run here; other tests run the others."""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}-{block.code[:20]!r}")
def test_each_block_of_python_compiles(block: Block) -> None:
    code = textwrap.dedent(block.code)
    ast.parse(f"async def function():\n{textwrap.indent(code, '    ')}\n    ...")


def _is_excerpt(code: str, source: str) -> bool:
    """Tell whether the parts between lines of dots stand in a file, whole lines, in that order."""
    lines = [line.strip() for line in source.splitlines()]
    at = 0
    for part in SKIPPED.split(code):
        wanted = [line.strip() for line in part.strip().splitlines()]
        last = len(lines) - len(wanted) + 1
        fits = (n for n in range(at, last) if lines[n : n + len(wanted)] == wanted)
        found = next(fits, None)
        if found is None:
            return False
        at = found + len(wanted)
    return True


@pytest.mark.parametrize("block", EXCERPTS, ids=lambda block: block.page)
def test_excerpts_are_those_of_their_files(block: Block) -> None:
    """Line by line; what is left out is a line of dots."""
    assert block.file is not None
    assert _is_excerpt(block.code, (DOCS / block.file).read_text("utf-8"))


def test_an_excerpt_that_was_changed_is_seen() -> None:
    """A line that is other, that is missing, or elsewhere."""
    source = "a = 1\nif a:\n    b = 2\n    c = 3\n"

    assert _is_excerpt("a = 1\n...\nc = 3\n", source)
    for wrong in ("a = 2\n", "a = 1\nb = 2\n", "c = 3\n...\na = 1\n", "a = 1\n...\nd = 4\n"):
        assert not _is_excerpt(wrong, source)


def test_each_way_of_training_has_its_excerpt_and_a_link() -> None:
    pages = {page.name for page in DOCS.glob("train-*.md")}
    listed = set(re.findall(r"\((train-\w+\.md)\)", (DOCS / "frameworks.md").read_text("utf-8")))

    others = {"ray.md", "start.md", "trackers.md"}
    assert pages == listed == {block.page for block in EXCERPTS} - others
    for block in EXCERPTS:
        assert f"]({block.file})" in (DOCS / block.page).read_text("utf-8")


def _runs(test: str, example: Path) -> bool:
    """Tell whether a test has an example's name, also as `f"train_{name}.py"` and `"ddp"`."""
    kind, _, rest = example.stem.partition("_")
    is_made = f"{kind}_{{" in test and re.search(rf"[\"']{rest}[\"']", test) is not None
    return example.name in test or f'"{example.stem}"' in test or is_made


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_each_example_is_named_by_a_page_and_run_by_a_test(example: Path) -> None:
    tests = (ROOT / "tests").rglob("test_*.py")
    pages = "".join(page.read_text("utf-8") for page in PAGES)

    assert f"(examples/{example.name})" in pages
    assert any(_runs(test.read_text("utf-8"), example) for test in tests)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The first alert of each example, all of them run beside each other: most of it is imports."""
    aggregator = Aggregator(tmp_path_factory.mktemp("examples") / "data")
    try:
        aggregator.start()
        _run_all(aggregator.ingest)
        yield {name: _first_alert(aggregator, f"{name}-example") for name in RUN}
    finally:
        aggregator.close()


def _run_all(endpoint: str) -> None:
    environ = os.environ | {
        "GRADWATCH_ENDPOINT": endpoint,
        "OMP_NUM_THREADS": "1",
        "GRADWATCH_OVERHEAD": "",
    }
    processes = [
        subprocess.Popen(
            [Path(sys.executable).with_name(program), *arguments],
            cwd=ROOT,
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        for program, *arguments in map(shlex.split, RUN.values())
    ]
    for process in processes:
        _, errors = process.communicate(timeout=3 * PATIENCE_S)
        assert process.returncode == 0, errors


def _first_alert(aggregator: Aggregator, run: str) -> str:
    def first() -> str | None:
        alerts = aggregator.json(f"/runs/{run}/alerts")
        return alerts[-1]["message"] if alerts else None

    message = wait_until(first, f"an alert of {run}")
    assert message is not None
    return message


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "message"),
    [
        ("amp", "NaN gradient since step 10 on rank 0: 4 layers, first 2.weight"),
        ("compile", "NaN in the forward pass since step 10 on rank 0: first from 0"),
        ("ddp", "Loss or forward pass not finite since step 10 on rank 1, then "),
        ("fsdp2", " pass not finite since step 10 on rank 1, then "),
        ("ray", "Loss or forward pass not finite since step 10 on rank 1, then "),
    ],
)
def test_an_example_is_told_where_it_went_wrong(
    told: dict[str, str], example: str, message: str
) -> None:
    assert message in told[example]
