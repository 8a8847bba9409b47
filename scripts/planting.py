"""Bugs planted in the product, one at a time, and a test command that has to find each of them.

A seed draws lines of the product that hold a comparison, a branch, a constant or an arithmetic
operation, and one change for each line. A draw depends on its line alone: its name stays while
other lines change. The script applies a change, runs the command, and restores the file, also after
an interruption. `{folder}` in the command is the folder of tests that mirrors the file.

    scripts/plant --seed 26 --count 60 --list
    scripts/plant --seed 26 --count 60 --skip 1f0c88a2 --results found.jsonl -- scripts/test -x
    scripts/plant --under server/gradwatch_server/notify -- scripts/test {folder} -x
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "client/gradwatch": "tests/client",
    "server/gradwatch_server": "tests/server",
    "shared/gradwatch_wire": "tests/wire",
}
"""Packages of the product, and the folder of tests that mirrors each."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}

SMALL = 10
"""Magnitude below which a constant is changed by one; a larger one is doubled."""


@dataclass(frozen=True)
class Change:
    """One replaced expression of one file; `start` and `end` are offsets in bytes."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def folder(self) -> str:
        """The folder of tests that mirrors the file, or the nearest one above it that exists."""
        package = next(each for each in SOURCES if self.path.startswith(each + "/"))
        folder = ROOT / SOURCES[package]
        for part in Path(self.path).relative_to(package).parts[:-1]:
            if not (folder / part.lstrip("_")).is_dir():
                break
            folder /= part.lstrip("_")
        return str(folder.relative_to(ROOT))

    def apply(self) -> None:
        """Write the changed expression into the file."""
        source = (ROOT / self.path).read_bytes()
        changed = source[: self.start] + self.after.encode() + source[self.end :]
        (ROOT / self.path).write_bytes(changed)


def changes_of(path: Path) -> Iterator[Change]:
    """Yield every change that can be made to one file."""
    source = path.read_bytes()
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    tree = ast.parse(source)
    for node in without_annotations(tree):
        for changed in changed_nodes(node):
            start = offsets[node.lineno - 1] + node.col_offset
            end = offsets[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            before = source[start:end].decode()
            after = ast.unparse(changed)
            if isinstance(node, ast.BinOp | ast.Compare | ast.BoolOp | ast.UnaryOp):
                after = f"({after})"
            name = str(path.relative_to(ROOT))
            yield Change(name, node.lineno, start, end, before, after)


def without_annotations(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of a tree: without annotations, decorators and parts of f-strings."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list"} or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.expr):
                yield child
            if isinstance(child, ast.AST):
                yield from without_annotations(child)


def changed_nodes(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the changes of one expression, its parts excepted."""
    match node:
        case ast.Compare(left, [operator], comparators) if type(operator) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(operator)]()], comparators)
        case ast.BoolOp(ast.And(), values):
            yield ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            yield ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
            yield ast.BinOp(left, ARITHMETIC[type(operator)](), right)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1 if abs(value) < SMALL else value * 2)


def drawn(seed: int, under: str) -> Iterator[tuple[str, Change]]:
    """Yield one change for every line under a path, each with its name, in the order of a seed."""
    of_line: dict[str, list[Change]] = defaultdict(list)
    for package in SOURCES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not str(path.relative_to(ROOT)).startswith(under):
                continue
            lines = path.read_text().splitlines()
            for change in changes_of(path):
                key = f"{seed} {change.path} {lines[change.line - 1].strip()}"
                of_line[hashlib.sha256(key.encode()).hexdigest()].append(change)
    for name in sorted(of_line):
        yield name[:8], of_line[name][int(name, 16) % len(of_line[name])]


def run(change: Change, command: list[str]) -> bool:
    """Return whether the command fails while the change is in the file."""
    path = ROOT / change.path
    source = path.read_bytes()
    try:
        change.apply()
        filled = [each.format(folder=change.folder) for each in command]
        done = subprocess.run(filled, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        print("\n".join(each for each in lines if each.startswith(("FAILED", "ERROR")))[:2000])
        return done.returncode != 0
    finally:
        path.write_bytes(source)


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    """End by an exception, so that the file is restored."""
    sys.exit(1)


def main() -> int:
    """Draw, plant, run, and print the number of bugs found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=26)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--skip", nargs="*", default=[], help="names of draws that change nothing")
    parser.add_argument("--under", default="", help="path of a folder or file; all if not given")
    parser.add_argument("--list", action="store_true", help="print the changes only")
    parser.add_argument("--results", type=Path, help="JSON lines; draws in it are not run")
    parser.add_argument("command", nargs="*", default=["scripts/test", "-x"])
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)

    found: dict[str, bool] = {}
    if asked.results and asked.results.exists():
        for line in asked.results.read_text().splitlines():
            result = json.loads(line)
            found[result["draw"]] = result["found"]
    planted = 0
    for draw, change in drawn(asked.seed, asked.under):
        if planted == asked.count:
            break
        if draw in asked.skip:
            continue
        planted += 1
        place, edit = f"{change.path}:{change.line}", f"{change.before!r} -> {change.after!r}"
        print(f"{draw}\t{place}\t{edit}", flush=True)
        if asked.list or draw in found:
            continue
        begun = time.monotonic()
        found[draw] = run(change, asked.command)
        seconds = time.monotonic() - begun
        print(f"\t{'found' if found[draw] else 'NOT FOUND'} after {seconds:.0f} s", flush=True)
        if asked.results:
            with asked.results.open("a") as results:
                print(json.dumps({"draw": draw, "found": found[draw]}), file=results)
    if not asked.list:
        print(f"{sum(found.values())} of {len(found)} found")
    return 0


sys.exit(main())
