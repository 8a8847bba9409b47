"""Which number a step has, for every way of training loops."""

from __future__ import annotations

import re

import pytest

from gradwatch._recording.step_counter import StepCounter


def play(script: str, optimizers: int) -> list[str]:
    """Play a training loop; return the number of each step.

    Args:
        script: Words: the number of the optimizer whose window ends, `0=7` if its step was given.
        optimizers: How many there are.

    Returns:
        For each word the optimizer's number, `@`, and the step, and `/` and the part.
    """
    steps = StepCounter(optimizers)
    ended = []
    for word in script.split():
        number, given = re.fullmatch(r"(\d)(?:=(\d+))?", word).groups()  # type: ignore[union-attr]
        if given is not None:
            steps.set_next(int(number), int(given))
        expected = steps.next_of(int(number))
        step, part = steps.begin(int(number))
        steps.end(int(number))
        assert step == expected
        ended.append(f"{number}@{step}/{part}")
    return ended


@pytest.mark.parametrize(
    ("script", "optimizers", "expected"),
    [
        ("0 0 0", 1, "0@0/0 0@1/0 0@2/0"),
        # A step that is given counts on from there.
        ("0=100 0 0", 1, "0@100/0 0@101/0 0@102/0"),
        ("0 0 0=50 0", 1, "0@0/0 0@1/0 0@50/0 0@51/0"),
        ("0=9 0=3 0", 1, "0@9/0 0@3/0 0@4/0"),
        # Two optimizers a step: two parts of it, in the order they step.
        ("0 1 0 1", 2, "0@0/0 1@0/1 0@1/0 1@1/1"),
        ("1 0 0 1", 2, "1@0/0 0@0/1 0@1/0 1@1/1"),
        ("0=7 1=7 0 1", 2, "0@7/0 1@7/1 0@8/0 1@8/1"),
        # A GAN whose critic steps three times for each step of the generator.
        ("0 0 0 1 0 0 0 1", 2, "0@0/0 0@1/0 0@2/0 1@2/1 0@3/0 0@4/0 0@5/0 1@5/1"),
        ("0 1 2 2 0 1", 3, "0@0/0 1@0/1 2@0/2 2@1/0 0@1/1 1@1/2"),
    ],
)
def test_each_window_has_its_step(script: str, optimizers: int, expected: str) -> None:
    """Steps count from 0; a step ends with the round of all optimizers, or when one is ahead."""
    assert " ".join(play(script, optimizers)) == expected


def test_without_optimizers_each_advance_is_a_step() -> None:
    """Each call of `collect`."""
    steps = StepCounter(0)
    steps.advance()
    steps.advance()

    assert steps.step == 2


def test_a_late_record_of_an_earlier_step_is_its_next_part() -> None:
    steps = StepCounter(3)
    for number in (0, 1):
        steps.begin(number)
        steps.end(number)
    assert steps.begin(0) == (1, 0)  # the next round, which optimizer 2 has not joined

    assert [steps.late_part(0), steps.late_part(0)] == [2, 2]  # 3 parts at most
