"""The registry of benchmarks, the pages that state their figures, and the command line."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.registry import BENCHMARKS, OPTIONS

ROOT = Path(__file__).parents[2]
PAGES = {
    page.name: page.read_text("utf-8") for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]
}
RUNNABLE = sorted(BENCHMARKS.keys() - {"gpu"})


def named_in(text: str) -> set[str]:
    return set(re.findall(r"scripts/bench ([a-z][a-z_-]*)", text))


def test_every_benchmark_that_a_page_names_is_registered() -> None:
    named = {name for text in PAGES.values() for name in named_in(text)}

    assert named <= BENCHMARKS.keys()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_page_that_states_the_figures_of_a_benchmark_names_it(name: str) -> None:
    pages = BENCHMARKS[name].pages

    assert pages
    assert all(name in named_in(PAGES[page]) for page in pages), pages


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_benchmark_takes_the_options_that_it_is_registered_with(name: str) -> None:
    """With the same defaults; `rounds` and the like are only chosen on the command line."""
    parameters = inspect.signature(
        import_module(f"benchmarks.{BENCHMARKS[name].module}").run
    ).parameters

    assert {each.name: each.default for each in parameters.values()} == BENCHMARKS[name].options


def test_every_option_is_one_of_some_benchmark() -> None:
    used = {option for benchmark in BENCHMARKS.values() for option in benchmark.options}

    assert used == OPTIONS.keys()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["step", "--rounds", "0"], "argument --rounds: 0 was given, at least 1 is allowed"),
        (["step", "--rounds", "many"], "argument --rounds: invalid int value: 'many'"),
        (["folder"], "invalid choice: 'folder'"),
        (["gpu"], "gpu is run by scripts/bench gpu"),
        (["fairness", "--write", "--quick"], "--write needs all of it"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_said_in_one_line(
    given: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scripts/bench", *given])

    with pytest.raises(SystemExit) as ended:
        main()

    assert said in capsys.readouterr().err + str(ended.value.code)


def test_without_a_name_all_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scripts/bench"])

    main()

    listed = capsys.readouterr().out
    assert all(re.search(rf"^ +{name}\b", listed, re.MULTILINE) for name in BENCHMARKS)
