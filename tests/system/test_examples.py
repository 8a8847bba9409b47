"""The examples of docs/gains.md run as they stand there and show what they say."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("gains_*.py"))
NUMBER = r"[+-]?\d+\.\d+"


def run(name: str) -> str:
    """Run an example as a person does; return what it printed."""
    done = subprocess.run(
        [sys.executable, DOCS / "examples" / f"gains_{name}.py"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GRADWATCH_OVERHEAD": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(NUMBER, line)]


def test_the_diagnostic_points_at_the_two_spoilt_blocks() -> None:
    """Block 4 has five times its weights, block 7 a tenth of them."""
    output = run("diagnostic")
    found = dict(
        re.findall(rf"look at block (\d+): it multiplies the gradient by ({NUMBER})", output)
    )

    assert set(found) == {"4", "7"}
    assert float(found["4"]) == pytest.approx(5.0, rel=0.2)
    assert float(found["7"]) == pytest.approx(0.1, rel=0.2)
    assert re.search(r"Transition  3 to  4: +\S+  amplifying", output)
    assert re.search(r"Transition  6 to  7: +\S+  damping", output)


def test_the_training_loop_prints_gains_as_the_loss_falls() -> None:
    """Five times in 200 steps; the untrained residual blocks have gains around one."""
    lines = [numbers(line) for line in run("training").splitlines()]
    losses, means, largest = zip(*lines, strict=True)

    assert len(lines) == 5
    assert losses[-1] < 0.6 * losses[0]
    assert means[0] == pytest.approx(1.0, abs=0.1)
    assert all(mean <= most for mean, most in zip(means, largest, strict=True))


def test_micro_batches_put_together_are_the_whole_batch() -> None:
    """Worked out again from what was printed."""
    output = run("accumulation")
    *parts, together, whole = [numbers(line) for line in output.splitlines()[:6]]
    combined = [math.sqrt(sum(norm**2 for norm in norms)) for norms in zip(*parts, strict=True)]

    assert len(parts) == 4
    assert together == pytest.approx(combined, rel=1e-3)
    assert together == pytest.approx(whole, rel=1e-3)
    assert output.endswith("they agree\n")


def test_pre_and_post_layer_norm_differ_the_more_the_deeper() -> None:
    rows = re.findall(rf"(\d+)  (pre|post)-LN +({NUMBER})", run("pre_post_ln"))
    pre = [float(ratio) for _, kind, ratio in rows if kind == "pre"]
    post = [float(ratio) for _, kind, ratio in rows if kind == "post"]

    assert len(pre) == len(post) == 3
    assert min(pre) > 1.3
    assert max(post) < 0.9
    assert all(shallow < deep for shallow, deep in pairwise(pre))
    assert all(shallow > deep for shallow, deep in pairwise(post))


def test_norm_types_differ_by_the_widths_they_depend_on() -> None:
    """`l1` is `mean` times the number of elements; per element the gains are near one."""
    found = re.findall(rf"(\d+) to +(\d+)((?: +{NUMBER}){{4}})", run("norm_types"))
    rows = [(int(early), int(late), numbers(gains)) for early, late, gains in found]

    assert len(rows) == 5
    assert sum(early != late for early, late, _ in rows) == 2
    for early, late, (_, l1, _, mean) in rows:
        assert l1 == pytest.approx(mean * early / late, rel=0.02)
        assert mean == pytest.approx(1.0, abs=0.4)


def test_the_plot_has_bars_to_the_side_of_the_sign_and_their_length_by_the_value() -> None:
    *lines, last = run("plot").splitlines()
    total, whole = numbers(last)
    bars = [(numbers(line)[0], *line.partition("|")[::2]) for line in lines]
    lengths = [(abs(value), left.count("#") + right.count("#")) for value, left, right in bars]

    assert len(bars) == 11
    assert total == pytest.approx(whole, abs=2e-3)
    assert total == pytest.approx(sum(value for value, _, _ in bars), abs=0.06)
    assert {value < 0 for value, _, _ in bars} == {True, False}
    assert all(("#" in left, "#" in right) == (value < 0, value > 0) for value, left, right in bars)
    assert [length for _, length in sorted(lengths)] == sorted(length for _, length in lengths)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_has_a_test_and_a_link(example: Path) -> None:
    name = example.stem.removeprefix("gains_")

    assert f'run("{name}")' in Path(__file__).read_text("utf-8")
    assert f"(examples/{example.name})" in (DOCS / "gains.md").read_text("utf-8")
