"""Whatever `attach` is given wrongly: one line says what was wrong, and nothing is left behind."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.optim import optimizer as optimizer_module

import gradwatch
from gradwatch._transport.spill import MIN_SPILL_BYTES
from gradwatch._watch.arguments import LAST_STEP, check_devices
from gradwatch._watch.attach import MIN_BUFFER_BYTES
from gradwatch_wire.names import SilentBug
from tests.support.descriptors import descriptors
from tests.support.elsewhere import module_on

MODEL = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
SCALER = torch.amp.GradScaler("cpu")
STRANGER = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
COMPUTED = nn.Linear(2, 2)  # as MAML leaves a model: the weight is a step away from the parameter
COMPUTED._parameters["weight"] = COMPUTED.weight * 0.9  # type: ignore[assignment]
LONG = nn.ParameterDict({"n" * 513: nn.Parameter(torch.ones(1))})


class Imitation(torch.optim.Optimizer):
    """A wrapper that never ran `Optimizer.__init__`, and wraps nothing that it shows."""

    def __init__(self) -> None:
        self.param_groups = OPTIMIZER.param_groups


def steps_of(count: int) -> list[torch.optim.Optimizer]:
    return [OPTIMIZER] * count


WRONG: Final[list[tuple[dict[str, Any], type[Exception], str]]] = [
    ({"model": None}, TypeError, "model: a torch.nn.Module or a dict .* got NoneType"),
    ({"model": nn.Linear}, TypeError, "model: a torch.nn.Module or a dict .* got type"),
    ({"model": {"a": None}}, TypeError, "model: 'a' is no torch.nn.Module but NoneType"),
    ({"model": {5: MODEL}}, TypeError, "model: names of modules are strings, got 5"),
    ({"model": nn.ReLU()}, ValueError, "model: none of its 0 watched parameters requires"),
    ({"model": {}}, ValueError, "model: none of its 0 watched parameters requires"),
    (
        {"model": nn.Linear(2, 2).requires_grad_(requires_grad=False)},
        *(ValueError, "model: none of its 2 watched parameters requires a gradient"),
    ),
    (
        {"model": nn.Linear(2, 2, dtype=torch.complex64)},
        *(ValueError, "model: weight is torch.complex64; complex gradients cannot be watched"),
    ),
    (
        {"model": nn.LazyLinear(2)},
        *(ValueError, "model: weight is not initialized; run a forward pass before attach"),
    ),
    ({"model": COMPUTED}, ValueError, "model: weight is no parameter of its own but computed"),
    ({"model": LONG}, ValueError, "model: the name 'nnn.* is no text of at most 512 bytes"),
    (
        {"model": {"a.b": nn.Linear(1, 1), "a": nn.ModuleDict({"b": nn.Linear(1, 1)})}},
        *(ValueError, "model: two parameters are called 'a.b.weight'; give the modules other"),
    ),
    ({"optimizer": "adam"}, TypeError, "optimizer: a torch.optim.Optimizer or a list .* str"),
    ({"optimizer": torch.optim.SGD}, TypeError, "optimizer: a torch.optim.Optimizer .* got type"),
    ({"optimizer": [OPTIMIZER, None]}, TypeError, "optimizer: .* got NoneType"),
    ({"optimizer": {OPTIMIZER}}, TypeError, "optimizer: .* got set"),
    ({"optimizer": [OPTIMIZER, OPTIMIZER]}, ValueError, "optimizer: one .* given twice"),
    (
        {"optimizer": STRANGER},
        *(ValueError, "optimizer: none of the 2 parameters of the optimizer is a watched"),
    ),
    (
        {"optimizer": (OPTIMIZER, STRANGER)},
        *(ValueError, "optimizer: none of the 2 parameters of the optimizer 1 is a watched"),
    ),
    ({"optimizer": steps_of(65)}, ValueError, "optimizer: at most 64, got 65; attach with"),
    (
        {"optimizer": Imitation()},
        *(TypeError, r"optimizer: Imitation is not a complete torch.optim.Optimizer \(its __i"),
    ),
    ({"run": 5}, TypeError, "run: a string, got int"),
    ({"run": "a b"}, ValueError, "run: 'a b' is not a run name; allowed are 1 to 128"),
    ({"endpoint": 5}, TypeError, "endpoint: a string or a list of strings, got int"),
    ({"endpoint": "localhost:5555"}, ValueError, "endpoint: 'localhost:5555' is not like tcp:"),
    ({"endpoint": "tcp://localhost:0"}, ValueError, "endpoint: 'tcp://localhost:0' is not like"),
    ({"endpoint": "http://a:8420"}, ValueError, "endpoint: 'http://a:8420' is not like tcp:"),
    ({"endpoint": "ipc://@"}, ValueError, "endpoint: 'ipc://@' is not like tcp:"),
    (
        {"endpoint": ["tcp://a:1", "b:2"]},
        *(ValueError, "endpoint: 'b:2', 2 of 2, is not like tcp:"),
    ),
    ({"endpoint": "tcp://[::::]:5555"}, ValueError, r"endpoint: 'tcp://\[::::\]:5555' is not"),
    ({"keys": 5}, TypeError, "keys: a path, got int"),
    ({"keys": "/nowhere/key"}, ValueError, "keys: key file /nowhere/key: No such file or dir"),
    ({"keys": "a\0b"}, ValueError, "keys: key file 'a.x00b': no path has a null character"),
    ({"every": 0}, ValueError, "every: at least 1, got 0"),
    ({"every": -3}, ValueError, "every: at least 1, got -3"),
    ({"every": 1.0}, TypeError, "every: a whole number, got 1.0"),
    ({"every": True}, TypeError, "every: a whole number, got True"),
    ({"overhead": "1%"}, TypeError, "overhead: None or a number between 0 and 1, got '1%'"),
    ({"overhead": 1}, ValueError, "overhead: above 0 and below 1, such as 0.01, got 1"),
    ({"overhead": 0.0}, ValueError, "overhead: above 0 and below 1, such as 0.01, got 0.0"),
    ({"first_step": -1}, ValueError, "first_step: at least 0, got -1"),
    ({"first_step": "7"}, TypeError, "first_step: a whole number, got '7'"),
    (
        {"first_step": LAST_STEP + 1},
        *(ValueError, f"first_step: at most {LAST_STEP}, got {LAST_STEP + 1}"),
    ),
    ({"groups": ["a"]}, TypeError, "groups: a dict of names to patterns or parameters"),
    ({"groups": {5: "*"}}, TypeError, "groups: names are strings, got 5"),
    ({"groups": {"a": 5}}, TypeError, "groups: 'a': one item or a list of them, got int"),
    ({"groups": {"a": [5]}}, TypeError, "groups: 'a' has to hold patterns or parameters"),
    ({"groups": {"a": []}}, ValueError, "groups: 'a' matches no watched parameter"),
    ({"groups": {"a": "x.*"}}, ValueError, "groups: 'a': pattern 'x.\\*' matches none of 2"),
    ({"groups": {"g" * 513: "*"}}, ValueError, "groups: the name 'ggg.* is no text of at most"),
    ({"groups": {str(n): "*" for n in range(65)}}, *(ValueError, "groups: at most 64, got 65")),
    ({"include": "x.*"}, ValueError, "include: pattern 'x.\\*' matches none of 2 names"),
    ({"include": 5}, TypeError, "include: one item or a list of them, got int"),
    ({"include": [5]}, TypeError, "include: patterns are strings, got int"),
    ({"include": []}, ValueError, "include, exclude: they leave none of the model's 2"),
    ({"exclude": ["x.*"]}, ValueError, "exclude: pattern 'x.\\*' matches none of 2 names"),
    ({"exclude": 5}, TypeError, "exclude: one item or a list of them, got int"),
    ({"exclude": "*"}, ValueError, "include, exclude: they leave none of the model's 2"),
    ({"scaler": 65536.0}, TypeError, "scaler: a torch.amp.GradScaler, got float"),
    ({"blocks": [MODEL]}, ValueError, "blocks: 2 to 4096 modules, got 1"),
    ({"blocks": 3}, TypeError, "blocks: a list of modules, got int"),
    ({"blocks": [MODEL, "h.1"]}, TypeError, "blocks: modules, got str"),
    ({"blocks": [MODEL, MODEL]}, ValueError, "blocks: one module is in the list twice"),
    ({"activations": 3}, TypeError, "activations: True, patterns of .* or modules, got int"),
    ({"activations": [nn.Linear(2, 2)]}, ValueError, "activations: a Linear was given that is no"),
    ({"parallel": ["data"]}, TypeError, "parallel: a dict of dimension to process group, got list"),
    ({"parallel": {"data": "x"}}, TypeError, "parallel: data: a process group, or a list of glob"),
    ({"parallel": {"rows": [0]}}, ValueError, "parallel: dimensions are pipeline, .*, got 'rows'"),
    ({"parallel": {"data": [1]}}, ValueError, "parallel: data: ranks below 1, each once, 0 a"),
    ({"columns": ["l3"]}, ValueError, "columns: some of l2, l1, linf, .*, got 'l3'"),
    ({"columns": 5}, TypeError, "columns: a list of names, got int"),
    ({"columns": [5]}, ValueError, "columns: some of l2, l1, linf, .*, got 5"),
    ({"columns": [[]]}, ValueError, r"columns: some of l2, l1, linf, .*, got \[\]"),
    ({"total_steps": -1}, ValueError, "total_steps: at least 0, got -1"),
    ({"total_steps": "all"}, TypeError, "total_steps: a whole number, got 'all'"),
    ({"report_every": 0}, ValueError, "report_every: at least 1, got 0"),
    ({"report_every": 2.5}, TypeError, "report_every: a whole number, got 2.5"),
    ({"local": "yes"}, TypeError, "local: True or False, got 'yes'"),
    ({"stacks": 1}, TypeError, "stacks: True or False, got 1"),
    ({"weights_every": -1}, ValueError, "weights_every: at least 0, got -1"),
    ({"weights_every": 1.5}, TypeError, "weights_every: a whole number, got 1.5"),
    ({"expected": 1}, TypeError, "expected: a list of names, got int"),
    (
        {"expected": ["frozen"]},
        ValueError,
        f"expected: some of {', '.join(SilentBug)}, got 'frozen'",
    ),
    ({"updates_every": -1}, ValueError, "updates_every: at least 0, got -1"),
    ({"updates_every": 1.5}, TypeError, "updates_every: a whole number, got 1.5"),
    ({"on_alert": "print"}, TypeError, "on_alert: a function of one alert, got str"),
    ({"buffer_bytes": 1000}, ValueError, f"buffer_bytes: at least {MIN_BUFFER_BYTES}, got 1"),
    ({"buffer_bytes": 1e6}, TypeError, "buffer_bytes: a whole number, got 1000000.0"),
    ({"spill": 5}, TypeError, "spill: a directory, got int"),
    ({"spill": "/dev/null/x"}, ValueError, "spill: cannot make the directory '/dev/null/x': .*"),
    ({"spill": "/proc/self"}, ValueError, "spill: the directory '/proc/self' cannot be written"),
    ({"spill": "a\0b"}, ValueError, "spill: cannot make the directory 'a.x00b': embedded null"),
    ({"spill_bytes": 1}, ValueError, f"spill_bytes: at least {MIN_SPILL_BYTES}, got 1"),
    ({"spill_bytes": "1G"}, TypeError, "spill_bytes: a whole number, got '1G'"),
]

# What has to be made for the whole of `attach`, so that each failure comes as late as it can.
EVERYTHING: Final[dict[str, Any]] = {
    "model": MODEL,
    "optimizer": OPTIMIZER,
    "run": "test",
    "scaler": SCALER,
    "local": True,
    "weights_every": 100,
    "updates_every": 8,
    "expected": (),
    "stacks": True,
    "blocks": [MODEL[0], MODEL[1]],
    "activations": True,
    "groups": {"all": "*"},
    "on_alert": print,
}


def left_behind() -> dict[str, Any]:
    """Return all that `attach` makes or hooks, to be compared."""
    hooks: dict[str, Any] = {
        f"{number} {name}": list(value or ())
        for number, owner in enumerate([*MODEL.modules(), *MODEL.parameters(), OPTIMIZER])
        for name, value in {**vars(owner), **slots(owner)}.items()
        if "hook" in name
    }
    return hooks | {
        "descriptors": descriptors(),
        "threads": threading.enumerate(),
        "of all modules": [
            list(value)
            for name, value in vars(global_hooks).items()
            if name.startswith("_global_") and isinstance(value, dict)
        ],
        "of all optimizers": [
            list(optimizer_module._global_optimizer_pre_hooks),
            list(optimizer_module._global_optimizer_post_hooks),
        ],
        "scaler": sorted(vars(SCALER)),
        "model": sorted(vars(MODEL)),
    }


def slots(owner: object) -> dict[str, Any]:
    """The hooks of a tensor, which are no part of its dict."""
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return {name: getattr(owner, name) for name in names if isinstance(owner, torch.Tensor)}


@pytest.mark.sampled(40)
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    WRONG,
    ids=[f"{n} {' '.join(w)}" for n, (w, _, _) in enumerate(WRONG)],
)
def test_a_wrong_argument_is_one_clear_error_and_leaves_nothing_behind(
    wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    before = left_behind()
    settings = {name: value for name, value in EVERYTHING.items() if name not in wrong} | wrong
    if "model" in wrong:
        for name in ("optimizer", "blocks", "activations"):
            settings.pop(name)

    with pytest.raises(error, match="^" + message) as caught:
        gradwatch.attach(**settings)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    assert left_behind() == before


def test_every_argument_is_given_wrongly() -> None:
    given = {name for wrong, _, _ in WRONG for name in wrong}
    assert given == set(inspect.signature(gradwatch.attach).parameters)

    kinds = {(name, error) for wrong, error, _ in WRONG for name in wrong}
    only_typed = {"scaler", "local", "stacks", "on_alert"}
    assert {name for name, error in kinds if error is TypeError} == given
    assert {name for name, error in kinds if error is ValueError} == given - only_typed


@pytest.mark.slow
def test_what_is_left_behind_would_be_seen() -> None:
    """A watch that is not closed is: the comparison is not empty."""
    before = left_behind()
    watch = gradwatch.attach(**EVERYTHING, endpoint="tcp://127.0.0.1:9")
    changed = {name for name, value in left_behind().items() if value != before[name]}
    watch.close()

    assert {"descriptors", "threads", "of all optimizers"} < changed
    assert {name.partition(" ")[2] for name in changed} >= {
        *("_forward_hooks", "_post_accumulate_grad_hooks", "_optimizer_step_pre_hooks")
    }
    assert left_behind() == before


def test_a_key_file_that_is_open_to_others_leaves_nothing_behind(tmp_path: Path) -> None:
    before = left_behind()
    path = tmp_path / "client.key"
    for mode, message in ((0o644, "mode 0644 is open to others"), (0o600, "'server' is missing")):
        path.write_text("a = 1\n")
        path.chmod(mode)
        with pytest.raises(ValueError, match=f"^keys: key file {path}: {message}"):
            gradwatch.attach(**EVERYTHING, keys=path)

    assert left_behind() == before


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank: RANK='2' WORLD_SIZE='2' in the environment"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "run: a name is needed, the same on all 2 ranks"),
        ({"GRADWATCH_RUN": "a/b"}, "run: 'a/b' is not a run name"),
        ({"GRADWATCH_ENDPOINT": "a/b"}, "endpoint: 'a/b' is not like tcp://"),
    ],
)
def test_an_environment_that_does_not_fit_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    """Settings and launchers are checked like arguments."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ValueError, match="^" + message):
        gradwatch.attach(MODEL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
def test_the_first_fsdp_is_refused(one_process: None) -> None:
    """A flat shard's norm would pass for that of a layer."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(torch.nn.Linear(4, 2), device_id=torch.device("cpu"))

    with pytest.raises(ValueError, match=r"^model: FullyShardedDataParallel .* use .*fully_shard$"):
        gradwatch.attach(model, run="test")


@pytest.mark.slow
def test_an_attach_that_fails_late_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    start = threading.Thread.start

    def no_more(thread: threading.Thread) -> None:
        if thread.name == "gradwatch-sender":
            msg = "can't start new thread"
            raise RuntimeError(msg)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", no_more)
    before = descriptors()
    with pytest.raises(ValueError, match=r"^threads: the background thread cannot be started: "):
        gradwatch.attach(model, optimizer, run="test", local=True, blocks=[model, nn.ReLU()])

    assert descriptors() == before
    assert not model._forward_hooks
    assert not any(p._post_accumulate_grad_hooks or p._backward_hooks for p in model.parameters())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("kind", ["mps", "xpu", "hpu"])
def test_a_model_on_a_device_that_is_not_supported_is_refused(kind: str) -> None:
    model = nn.ModuleDict({"head": module_on(kind)})
    threads = threading.active_count()
    with pytest.raises(ValueError, match=rf"^model: head.weight is on {kind}:0; .* only") as caught:
        gradwatch.attach(model, run="test")

    assert "\n" not in str(caught.value)
    assert ("float64" in str(caught.value)) == (kind == "mps")
    assert threading.active_count() == threads


@pytest.mark.parametrize("kind", ["cpu", "cuda", "meta"])
def test_a_model_on_other_devices_is_not(kind: str) -> None:
    """ROCm goes by the name of cuda; what is on meta is left out later, layer by layer."""
    parameter = SimpleNamespace(device=torch.device(kind))
    layers: Any = [SimpleNamespace(name="head.weight", parameter=parameter)]
    check_devices(layers)
