"""`gradwatch silence`."""

from __future__ import annotations

import json

import pytest

from tests.support.command import Command


def test_silences_are_made_listed_and_ended(ask: Command) -> None:
    """A pattern that fits nothing is warned of."""
    made = ask("silence", "--run", "no-such", "--for", "2h", "--by", "ada", "--json")
    own = json.loads(made.stdout)

    assert "warning: run: no run fits 'no-such' now" in made.stderr
    assert f"{own['id']} run no-such, rule *, layers *, until" in ask("silence").stdout
    assert ask("silence", "--end", own["id"]).returncode == 0
    assert ask("silence").stdout == "no silences\n"
    assert ask("silence", "--end", own["id"]).returncode == 1


@pytest.mark.parametrize("arguments", [("--for", "3weeks"), ("--comment", "why")])
def test_a_silence_without_a_pattern_is_an_error(ask: Command, arguments: tuple[str, ...]) -> None:
    done = ask("silence", *arguments)

    assert done.returncode == 2
    assert "say which alerts to silence: --run, --rule or --layers" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--run", "x", "--for", "soon"), "--for: a number with s, m, h or d"),
        (("--run", "x", "--for", "400d"), "for_s"),
        (("--run", "x", "--end", "y"), "--end is for a silence that is there"),
        (("--run", "*"), "this would silence everything"),
    ],
)
def test_a_silence_that_makes_no_sense_is_one_line(
    ask: Command, arguments: tuple[str, ...], says: str
) -> None:
    done = ask("silence", *arguments)

    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
