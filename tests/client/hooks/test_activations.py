"""`attach(activations=...)`: the largest magnitudes in outputs, and which was bad first."""

from __future__ import annotations

import copy
import io
import math
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from gradwatch_wire import Manifest
from gradwatch_wire.columns import NOT_SEEN
from tests.support.recording import Sink

pytestmark = pytest.mark.slow

BACKEND = "aot_eager"  # traces forward and backward as inductor does, and needs no C++ compiler
BREAK = 1e4
"""A batch with such a number in it makes a block break that is told to."""


class Block(nn.Module):
    """Adds a NaN, or what it is told, to a batch with a large number in it."""

    def __init__(self, added: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.added: Tensor
        self.register_buffer("added", torch.tensor(added))

    def forward(self, x: Tensor) -> Tensor:
        is_bad = x.detach().abs().amax() > BREAK / 2
        changed: Tensor = x + self.linear(x).tanh()
        return changed + torch.where(is_bad, self.added, 0.0)


class Model(nn.Module):
    """Its head is registered first and called last."""

    def __init__(self, bad: int = 1, added: float = math.nan, blocks: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)
        self.blocks = nn.ModuleList(Block(added if i == bad else 0.0) for i in range(blocks))
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        found: Tensor = self.head(x).mean()
        return found


def good() -> Tensor:
    return torch.randn(2, 4)


def broken() -> Tensor:
    return good().index_fill(1, torch.tensor([0]), BREAK)


def named(aggregator: Any, stats: Any) -> dict[str, float]:
    """Return the magnitudes by name."""
    manifests = {m.manifest_id: m for m in aggregator.of(Manifest)}
    modules = manifests[stats.manifest_id].modules
    return dict(zip(modules, stats.activations.unpack(), strict=True))


def first_bad(aggregator: Any, stats: Any) -> str | None:
    """Return the name of the module that was bad first, "unknown", or None if none was."""
    place = stats.scalars.get("nonfinite_module")
    if place is None or math.isnan(place):
        return None if place is None else "unknown"
    manifests = {m.manifest_id: m for m in aggregator.of(Manifest)}
    return manifests[stats.manifest_id].modules[int(place)]  # type: ignore[no-any-return]


def watched(attach: Any, model: nn.Module, **settings: Any) -> tuple[Any, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"activations": True} | settings
    return attach(model, optimizer, **settings), optimizer


def steps(optimizer: Any, model: Any, *batches: Tensor) -> None:
    """Train, without a NaN in the weights: what was measured stays when gradients are dropped."""
    for batch in batches:
        model(batch).backward()
        optimizer.zero_grad()
        optimizer.step()


def test_the_magnitudes_are_those_of_the_outputs(aggregator: Sink) -> None:
    model = Model()
    _, optimizer = watched(aggregator.attach, model)
    batch = good()
    expected, x = {}, batch
    with torch.no_grad():
        for number, block in enumerate(model.blocks):
            x = block(x)
            expected[f"blocks.{number}"] = x.abs().amax().item()
        expected["head"] = model.head(x).abs().amax().item()
    steps(optimizer, model, batch)
    (stats,) = aggregator.stats(1)

    assert named(aggregator, stats) == expected
    assert first_bad(aggregator, stats) is None


@pytest.mark.parametrize("added", [math.nan, math.inf, -math.inf])
def test_the_first_bad_output_is_named_and_not_the_first_registered(
    aggregator: Sink, added: float
) -> None:
    """NaN and Inf are data; what came before it is finite."""
    model = Model(added=added)
    _, optimizer = watched(aggregator.attach, model)
    steps(optimizer, model, good(), broken())
    stats = aggregator.stats(2)
    magnitudes = named(aggregator, stats[1])

    assert [first_bad(aggregator, stat) for stat in stats] == [None, "blocks.1"]
    assert magnitudes["blocks.0"] > BREAK / 2
    assert str(magnitudes["blocks.1"]) == ("nan" if math.isnan(added) else "inf")
    assert not math.isfinite(magnitudes["blocks.2"])


def test_of_several_passes_the_largest_and_the_first_bad(aggregator: Sink) -> None:
    """Accumulation and several steps in a record: one bad micro-batch is enough."""
    model = Model()
    _, optimizer = watched(aggregator.attach, model, report_every=2)
    batches = (good(), broken(), good(), good() * 3)
    with torch.no_grad():
        largest = max(model.blocks[0](batch).abs().amax().item() for batch in batches)
    for batch in batches:
        model(batch).backward()
    optimizer.zero_grad()
    optimizer.step()
    steps(optimizer, model, good())
    (stats,) = aggregator.stats(1)

    assert first_bad(aggregator, stats) == "blocks.1"
    assert named(aggregator, stats)["blocks.0"] == largest
    assert stats.scalars["nonfinite_module_step"] == stats.scalars["first_nonfinite_step"] == 0.0


def test_passes_that_take_another_way_are_told_apart(aggregator: Sink) -> None:
    model = nn.ModuleDict({"a": Block(), "b": Block(math.nan)})
    _, optimizer = watched(aggregator.attach, model, report_every=2)
    for name, batch in (("a", good()), ("b", good()), ("a", good()), ("b", broken())):
        model[name](batch).mean().backward()
        if name == "b":
            optimizer.zero_grad()
            optimizer.step()
    (stats,) = aggregator.stats(1)

    assert first_bad(aggregator, stats) == "b"
    assert stats.scalars["nonfinite_module_step"] == 1.0


@pytest.mark.parametrize("generator_first", [False, True])
def test_a_pass_through_two_networks_tells_both(aggregator: Sink, generator_first: bool) -> None:
    """The generator's pass reaches the discriminator's layers, whose window then is none."""
    networks = nn.ModuleDict({"G": Block(math.nan), "D": nn.Linear(4, 1)})
    optimizers = {name: torch.optim.SGD(each.parameters()) for name, each in networks.items()}
    given = list(optimizers.values()) if generator_first else list(optimizers.values())[::-1]
    aggregator.attach(networks, given, activations=True)
    for batch in (good(), good(), broken()):
        networks["D"](good()).mean().backward()
        optimizers["D"].step()
        networks["D"](networks["G"](batch)).mean().backward()
        optimizers["G"].zero_grad()
        optimizers["G"].step()
        optimizers["D"].zero_grad()
    stats = aggregator.stats(6)
    of_generator = [stat for stat in stats if "G.linear.weight" in aggregator.layers(stat)]

    assert len(of_generator) == 3
    assert [first_bad(aggregator, own) for own in of_generator] == [None, None, "G"]


def test_what_is_no_training_pass_is_not_measured(aggregator: Sink) -> None:
    """Evaluation with and without gradients, and steps that are not due."""
    model = Model()
    _, optimizer = watched(aggregator.attach, model, every=2)
    steps(optimizer, model, good(), broken())
    model.eval()
    model(broken())
    model.train()
    with torch.no_grad():
        model(broken())
    steps(optimizer, model, good())
    stats = aggregator.stats(2)

    assert [stat.step for stat in stats] == [0, 2]
    assert [first_bad(aggregator, stat) for stat in stats] == [None, None]
    assert all(0.0 < m < BREAK / 2 for m in named(aggregator, stats[1]).values())


def test_a_batch_that_was_dropped_names_nobody_later(aggregator: Sink) -> None:
    """A guard on the loss drops it before the backward pass: the gradients are another batch's."""
    model = Model()
    _, optimizer = watched(aggregator.attach, model)
    steps(optimizer, model, good())
    model(broken())
    steps(optimizer, model, good())
    stats = aggregator.stats(2)

    assert first_bad(aggregator, stats[1]) == "unknown"


@pytest.mark.parametrize(("masked", "told"), [(-math.inf, "blocks.1"), (math.nan, "unknown")])
def test_what_is_not_finite_in_good_steps_is_not_to_blame(
    aggregator: Sink, masked: float, told: str
) -> None:
    """A mask is infinite by design; behind one that is NaN a NaN of its own would not show."""

    class Masked(Model):
        def __init__(self) -> None:
            super().__init__()
            self.mask = Mask()

        def forward(self, x: Tensor) -> Tensor:
            self.mask(x)
            return super().forward(x)

    class Mask(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full_like(x, masked)

    model = Masked()
    _, optimizer = watched(aggregator.attach, model, activations=["mask", "blocks.?", "head"])
    steps(optimizer, model, good(), good(), broken())
    stats = aggregator.stats(3)

    assert [first_bad(aggregator, stat) for stat in stats] == [
        "unknown" if math.isinf(masked) else "mask",
        None,
        told,
    ]
    assert named(aggregator, stats[1])["mask"] == pytest.approx(abs(masked), nan_ok=True)


@pytest.mark.parametrize("compiled", [False, True])
def test_outputs_of_any_kind_and_dtype(aggregator: Sink, compiled: bool) -> None:
    """Tuples, dicts, dataclasses; float16 and bfloat16; integers and what is empty are left out."""

    @dataclass
    class Both:
        hidden: Tensor
        count: int

    class Returns(nn.Module):
        def __init__(self, make: Any) -> None:
            super().__init__()
            self.make = make

        def forward(self, x: Tensor) -> Any:
            return self.make(x)

    kinds = {
        "tuple": lambda x: (x.detach() * 0, [x * 2]),
        "dict": lambda x: {"a": x * 3, "b": None},
        "dataclass": lambda x: Both(x * 4, 7),
        "bf16": lambda x: (x * 5).bfloat16(),
        "fp16": lambda x: (x * -6).half(),
        "integers": lambda x: x.long(),
        "empty": lambda x: x[:0],
        "complex": lambda x: x.to(torch.complex64),
        "text": lambda x: "nothing",
    }

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 4))
            self.kinds = nn.ModuleDict({name: Returns(make) for name, make in kinds.items()})

        def forward(self) -> Tensor:
            for kind in self.kinds.values():
                kind(self.weight)
            return self.weight.sum()

    model = Odd()
    watch, optimizer = watched(aggregator.attach, model, activations="kinds.*")
    called: Any = torch.compile(model, backend=BACKEND, fullgraph=True) if compiled else model
    called().backward()
    optimizer.step()
    (stats,) = aggregator.stats(1)

    assert list(named(aggregator, stats).values()) == [2, 3, 4, 5, 6, *[NOT_SEEN] * 4]
    assert watch.stats()["last_error"] == ""


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_changes_nothing(aggregator: Sink, reentrant: bool) -> None:
    model = Model()
    model.reentrant = reentrant
    _, optimizer = watched(aggregator.attach, model)
    steps(optimizer, model, *(each().requires_grad_() for each in (good, broken)))
    stats = aggregator.stats(2)

    assert [first_bad(aggregator, stat) for stat in stats] == [None, "blocks.1"]
    assert all(magnitude > 0 for magnitude in named(aggregator, stats[0]).values())


def test_a_module_that_is_called_twice_is_named_only_if_that_is_sure(aggregator: Sink) -> None:
    """Shared between places, its first output may be good and its second spoilt by another's."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.bad = nn.Linear(4, 4), Block(math.nan)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.shared(self.bad(self.shared(x) * 0 + x)).mean()
            return found

    model = Shared()
    _, optimizer = watched(aggregator.attach, model, activations=["shared", "bad"])
    steps(optimizer, model, good(), broken())
    stats = aggregator.stats(2)

    assert first_bad(aggregator, stats[1]) == "bad"


def test_a_model_is_as_usable_as_before(aggregator: Sink) -> None:
    """Pickled, saved and copied; copies are not watched."""
    model = Model()
    watch, _ = watched(aggregator.attach, model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    copies.append(torch.load(buffer, weights_only=False))
    batch = good()

    assert {each(batch).item() for each in copies} == {model(batch).item()}
    hook = next(iter(copies[0].head._forward_hooks.values()))
    assert "gradwatch" not in repr(hook)
    exported = torch.export.export(model, (batch,))
    assert exported.module()(batch).item() == model(batch).item()
    torch.func.grad(lambda x: torch.func.functional_call(model, {}, (x,)))(batch)
    assert watch.stats()["last_error"] == ""


def test_the_weights_are_those_without_it(aggregator: Sink) -> None:
    """Bit for bit."""
    found = []
    for activations in (False, True):
        torch.manual_seed(0)
        model = Model()
        watch, optimizer = aggregator.attach_sgd(model, activations=activations)
        steps(optimizer, model, good(), good())
        watch.close()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))

    assert torch.equal(*found)


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo's own, of a block
@pytest.mark.parametrize("kind", ["whole", "checkpointed", "in place", "wrapped"])
def test_compiled_hooks_are_in_the_graph(aggregator: Sink, kind: str) -> None:
    counters.clear()
    model = Model(bad=5, blocks=12)
    if kind == "wrapped":
        for number, block in enumerate(model.blocks):
            own: Any = torch.compile(block, backend=BACKEND, fullgraph=True)
            model.blocks[number] = own
    called: Any = model
    if kind in {"whole", "checkpointed"}:
        model.reentrant = False if kind == "checkpointed" else None
        called = torch.compile(model, backend=BACKEND, fullgraph=True)
    _, optimizer = watched(aggregator.attach, called)
    if kind == "in place":
        for block in model.blocks:
            block.compile(backend=BACKEND, fullgraph=True)
    steps(optimizer, called, good(), good(), broken(), good())
    stats = aggregator.stats(4)

    assert counters["graph_break"] == {}
    # Compiled in place, the hook is a graph of its own beside those of the block.
    assert counters["stats"]["unique_graphs"] == {"whole": 1, "checkpointed": 1}.get(
        kind, 3 if kind == "in place" else 2
    )
    assert [first_bad(aggregator, stat) for stat in stats] == [None, None, "blocks.5", None]
    last = named(aggregator, stats[3])
    assert all(0.0 < magnitude < BREAK / 2 for magnitude in last.values())


def test_hooks_that_come_too_late_are_told_and_nothing_is_claimed(aggregator: Sink) -> None:
    """Dynamo never calls those that come after the first call; no zero stands for that."""
    model = Model()
    called: Any = torch.compile(model, backend=BACKEND)
    called(good())
    watch, optimizer = watched(aggregator.attach, called)
    steps(optimizer, called, good(), broken())
    stats = aggregator.stats(2)

    assert {*named(aggregator, stats[0]).values(), *named(aggregator, stats[1]).values()} == {
        NOT_SEEN
    }
    assert first_bad(aggregator, stats[1]) is None
    assert "attach before its first call" in watch.stats()["last_error"]


def test_without_it_there_is_no_trace_of_it(aggregator: Sink) -> None:
    model = Model()
    _, optimizer = watched(aggregator.attach, model, activations=False)
    steps(optimizer, model, good())
    (stats,) = aggregator.stats(1)

    assert stats.activations is None
    assert aggregator.of(Manifest)[0].modules == ()
    assert not model.blocks[0]._forward_hooks


def test_closing_removes_the_hooks(aggregator: Sink) -> None:
    model = Model()
    watch, _ = watched(aggregator.attach, model)
    assert model.blocks[0]._forward_hooks
    watch.close()

    assert not any(module._forward_hooks for module in model.modules())


def test_of_a_dtensor_this_ranks_part_is_measured(aggregator: Sink, one_process: None) -> None:
    """Tensor parallelism hands them from module to module; FSDP2 wraps the modules."""
    mesh = init_device_mesh("cpu", (1,))
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    parallelize_module(
        model, mesh, {"0": ColwiseParallel(use_local_output=False), "1": RowwiseParallel()}
    )
    sharded = Model()
    fully_shard(sharded, mesh=mesh)
    both = nn.ModuleDict({"parallel": model, "sharded": sharded})
    watch, optimizer = watched(aggregator.attach, both)
    batch = good()
    largest = model[0](batch).to_local().abs().amax().item()
    (model(batch).mean() + sharded(batch)).backward()
    optimizer.step()
    (stats,) = aggregator.stats(1)
    found = named(aggregator, stats)

    assert found["parallel.0"] == largest
    assert all(magnitude > 0.0 for magnitude in found.values())
    assert watch.stats()["last_error"] == ""
