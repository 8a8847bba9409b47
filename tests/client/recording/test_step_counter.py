"""Which step a collection belongs to, for every way of training loops."""

from __future__ import annotations

import re

import pytest

from gradwatch._recording.step_counter import StepCounter


def play(script: str, optimizers: int = 1) -> list[str]:
    """Play a training loop; return where it collects.

    Args:
        script: Words: `collect`, `collect=7` for a step that is given, and `0`, `1` for the
            optimizer that steps.
        optimizers: How many there are.

    Returns:
        For each collection `c` or the optimizer's number, `@`, and the step, and `/` and the part.
    """
    steps = StepCounter(optimizers)
    collected = []
    for word in script.split():
        if word.startswith("collect"):
            given = re.search(r"=(\d+)", word)
            collected.append(f"c@{steps.on_collect(int(given[1]) if given else None)}")
            continue
        number = int(word)
        due = steps.before_optimizer(number)
        if due is not None:
            collected.append(f"{number}@{due[0]}/{due[1]}")
        steps.after_optimizer(number)
    return collected


@pytest.mark.parametrize(
    ("script", "optimizers", "expected"),
    [
        # One optimizer: its step is the point of collection, or `collect` is.
        ("0 0 0", 1, "0@0/0 0@1/0 0@2/0"),
        ("collect 0 collect 0 collect 0", 1, "c@0 c@1 c@2"),
        ("collect 0 0 0 collect 0", 1, "c@0 0@1/0 0@2/0 c@3"),
        # A step that the script skips, as a GradScaler does after an overflow.
        ("collect 0 collect collect collect 0", 1, "c@0 c@1 c@2 c@3"),
        ("collect collect 0 0", 1, "c@0 c@1 0@2/0"),
        # No optimizer: each `collect` is a step.
        ("collect collect collect", 0, "c@0 c@1 c@2"),
        # A step that is given counts on from there.
        ("collect=100 0 collect 0 0", 1, "c@100 c@101 0@102/0"),
        ("0 0 collect=50 0 0", 1, "0@0/0 0@1/0 c@50 0@51/0"),
        ("collect=9 collect=9 0 collect 0", 1, "c@9 c@9 c@10"),
        ("collect=9 0 collect=3 0 0", 1, "c@9 c@3 0@4/0"),
        ("collect=7 collect collect", 0, "c@7 c@8 c@9"),
        ("collect=0 0 0", 1, "c@0 0@1/0"),
        # Two optimizers a step: two parts of it, in the order they step.
        ("0 1 0 1", 2, "0@0/0 1@0/1 0@1/0 1@1/1"),
        ("1 0 0 1", 2, "1@0/0 0@0/1 0@1/0 1@1/1"),
        ("collect 0 1 collect 0 1", 2, "c@0 c@1"),
        ("collect 0 1 0 1", 2, "c@0 0@1/0 1@1/1"),
        ("0 collect 0 1 collect", 2, "0@0/0 c@1 c@2"),
        # A GAN whose critic steps three times for each step of the generator.
        ("0 0 0 1 0 0 0 1", 2, "0@0/0 0@1/0 0@2/0 1@2/1 0@3/0 0@4/0 0@5/0 1@5/1"),
        ("collect 0 collect 0 collect 0 1", 2, "c@0 c@1 c@2"),
        # Collecting before each of two optimizers counts each as a step.
        ("collect 0 collect 1 collect 0 collect 1", 2, "c@0 c@1 c@2 c@3"),
        ("0 1 2 2 0 1", 3, "0@0/0 1@0/1 2@0/2 2@1/0 0@1/1 1@1/2"),
    ],
)
def test_each_collection_has_its_step(script: str, optimizers: int, expected: str) -> None:
    """Steps count from 0; a step ends with the round of all optimizers, or when one is ahead."""
    assert " ".join(play(script, optimizers)) == expected


def test_the_step_is_that_of_the_next_backward_pass() -> None:
    """It moves on when the last optimizer has stepped."""
    steps = StepCounter(2)
    seen = []
    for number in (0, 1, 0):
        steps.before_optimizer(number)
        steps.after_optimizer(number)
        seen.append(steps.step)

    assert seen == [0, 1, 1]
