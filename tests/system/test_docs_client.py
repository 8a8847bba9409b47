"""docs/client.md against what it describes: signatures, errors, counters, environment variables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import torch
from torch import nn

import gradwatch

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "client.md").read_text("utf-8")


def _section(heading: str) -> str:
    """Return what stands below a heading, up to the next one of any level."""
    return PAGE.split(f"\n{heading}\n")[1].split("\n#")[0]


def _rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its head."""
    lines = [line for line in _section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def _described(function: Callable[..., Any]) -> list[list[str]]:
    """Return name, type and default of each argument as the page has to show them."""
    arguments = [
        argument
        for argument in inspect.signature(function).parameters.values()
        if argument.name != "self"
    ]
    return [
        [
            f"`{argument.name}`",
            f"`{argument.annotation}`".replace("|", "\\|"),
            "" if argument.default is argument.empty else f"`{argument.default!r}`",
        ]
        for argument in arguments
    ]


@pytest.mark.parametrize(
    ("heading", "function"),
    [("## `attach`", gradwatch.attach), ("### `collect`", gradwatch.Watch.collect)],
)
def test_every_argument_has_its_line_with_type_and_default(
    heading: str, function: Callable[..., Any]
) -> None:
    rows = _rows(heading)

    assert [row[:3] for row in rows] == _described(function)
    assert all(row[3].endswith(".") for row in rows)


def test_every_public_method_of_a_watch_has_its_section() -> None:
    """And `NullWatch` has the same ones."""
    methods = {name for name in vars(gradwatch.Watch) if not name.startswith("_")}
    described = set(re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE))

    assert described == methods
    assert {name for name in vars(gradwatch.NullWatch) if not name.startswith("_")} == methods


def test_every_counter_has_its_line() -> None:
    """`test_watch.py` shows that a real watch has the same ones."""
    assert [row[0].strip("`") for row in _rows("### `stats`")] == list(
        gradwatch.NullWatch().stats()
    )


def test_every_environment_variable_of_the_client_has_its_line() -> None:
    sources = [
        *(ROOT / "client" / "gradwatch").rglob("*.py"),
        *(ROOT / "shared" / "gradwatch_wire").rglob("*.py"),
    ]
    used = {
        name
        for source in sources
        for name in re.findall(r'"(GRADWATCH_[A-Z]+)"', source.read_text("utf-8"))
    }

    assert {row[0].strip("`") for row in _rows("## Environment variables")} == used


class Error(NamedTuple):
    """A line of the table of errors."""

    argument: str
    kind: str
    message: str
    is_whole: bool


ERRORS: Final = [
    Error(row[0].strip("`"), row[1], row[2].removesuffix(" ...").strip("`"), row[2].endswith("`"))
    for row in _rows("### Errors")
]


def _frozen() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(requires_grad=False)


def _twice() -> dict[str, object]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": [optimizer, optimizer]}


WRONG: Final[dict[tuple[str, str], Callable[[], dict[str, object]]]] = {
    ("model", "TypeError"): lambda: {"model": "model"},
    ("model", "ValueError"): lambda: {"model": _frozen()},
    ("optimizer", "TypeError"): lambda: {"optimizer": "sgd"},
    ("optimizer", "ValueError"): _twice,
    ("run", "TypeError"): lambda: {"run": 7},
    ("run", "ValueError"): lambda: {"run": "a b"},
    ("endpoint", "TypeError"): lambda: {"endpoint": 5555},
    ("endpoint", "ValueError"): lambda: {"endpoint": "127.0.0.1:5555"},
    ("keys", "TypeError"): lambda: {"keys": 7},
    ("keys", "ValueError"): lambda: {"keys": "/nowhere/client.key"},
    ("total_steps", "ValueError"): lambda: {"total_steps": -1},
    ("every", "TypeError"): lambda: {"every": 1.5},
    ("every", "ValueError"): lambda: {"every": 0},
    ("overhead", "TypeError"): lambda: {"overhead": "1%"},
    ("overhead", "ValueError"): lambda: {"overhead": 0.0},
    ("first_step", "ValueError"): lambda: {"first_step": -1},
    ("groups", "TypeError"): lambda: {"groups": "host"},
    ("groups", "ValueError"): lambda: {"groups": {"host": "backbone.*"}},
    ("include", "TypeError"): lambda: {"include": [7]},
    ("include", "ValueError"): lambda: {"include": "head.*"},
    ("exclude", "ValueError"): lambda: {"exclude": "*"},
    ("scaler", "TypeError"): lambda: {"scaler": 65536.0},
    ("blocks", "TypeError"): lambda: {"blocks": 2},
    ("blocks", "ValueError"): lambda: {"blocks": [nn.Linear(2, 2)]},
    ("activations", "TypeError"): lambda: {"activations": 3},
    ("activations", "ValueError"): lambda: {"activations": [nn.Linear(2, 2)]},
    ("parallel", "TypeError"): lambda: {"parallel": ["data"]},
    ("parallel", "ValueError"): lambda: {"parallel": {"rows": [0]}},
    ("columns", "TypeError"): lambda: {"columns": 5},
    ("columns", "ValueError"): lambda: {"columns": ["l3"]},
    ("report_every", "ValueError"): lambda: {"report_every": 0},
    ("local", "TypeError"): lambda: {"local": "yes"},
    ("stacks", "TypeError"): lambda: {"stacks": 1},
    ("weights_every", "TypeError"): lambda: {"weights_every": 1.5},
    ("weights_every", "ValueError"): lambda: {"weights_every": -1},
    ("expected", "TypeError"): lambda: {"expected": 1},
    ("expected", "ValueError"): lambda: {"expected": ["frozen"]},
    ("updates_every", "ValueError"): lambda: {"updates_every": -1},
    ("on_alert", "TypeError"): lambda: {"on_alert": "print"},
    ("buffer_bytes", "ValueError"): lambda: {"buffer_bytes": 1},
    ("spill", "TypeError"): lambda: {"spill": 7},
    ("spill", "ValueError"): lambda: {"spill": "/dev/null/spill"},
    ("spill_bytes", "ValueError"): lambda: {"spill_bytes": 1},
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{error.argument}-{error.kind}")
def test_every_error_is_raised_as_written(error: Error) -> None:
    """Kind and text."""
    arguments: dict[str, Any] = {"model": nn.Linear(2, 2), "run": "docs"}
    arguments |= WRONG[error.argument, error.kind]()

    with pytest.raises((TypeError, ValueError)) as caught:
        gradwatch.attach(**arguments)

    message = str(caught.value)
    assert type(caught.value).__name__ == error.kind
    assert message == error.message if error.is_whole else message.startswith(error.message)


def test_every_argument_that_can_be_wrong_has_an_error() -> None:
    arguments = set(inspect.signature(gradwatch.attach).parameters)

    assert {error.argument for error in ERRORS} == arguments


class _Loss(nn.Module):
    """A model whose output is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch).square().mean()
        return loss


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/client.md"])
def test_the_example_measures_every_step(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one of the page, as it stands there; nobody listens at the endpoint."""
    monkeypatch.setenv("GRADWATCH_ENDPOINT", "tcp://127.0.0.1:9")
    example = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)[0]
    model = _Loss()
    names: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": [torch.ones(3, 2)] * 4,
        "clip_grad_norm_": nn.utils.clip_grad_norm_,
    }

    exec(compile(example, page, "exec"), names)
    watch = names["watch"]
    watch.close()

    assert watch.stats()["collected"] == 4
    assert watch.stats()["faults"] == 0
