"""Calls that the CUDA path makes of the driver, and kernels that it compiles. Needs no GPU.

All is real but the device: Triton binds, compiles for sm_90 and looks up its kernels as it does on
one, tensors lie on the CPU, and launches and events are counted in place of being made. Operations
of torch are made and counted: each that is no view and no bare allocation would be a launch, a copy
or a fill. Run in a process of its own without `TRITON_INTERPRET`.
"""

from __future__ import annotations

import ctypes
import json
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import gradwatch
from gradwatch._recording import readback, recorder, step_history, step_sample
from gradwatch._recording.packed_numbers import PackedNumbers
from gradwatch._statistics import capture, norm_slots, updates
from gradwatch._statistics.cuda import warm_up
from gradwatch._statistics.norm_slots import Expected, NormSlots
from gradwatch._statistics.single import measure_norm
from gradwatch._statistics.statistics import cuda_statistics
from gradwatch._statistics.triton import addresses, norms
from gradwatch_wire.columns import MEASURED_COLUMNS

NOWHERE: Final = "tcp://127.0.0.1:9"
WARM_STEPS: Final = 4
STEPS: Final = 2 * addresses.MAX_UPLOADS

calls: Final[Counter[str]] = Counter()
"""What the driver was asked for, by kind; `module` is a variant of a kernel that was loaded."""


class Operations(TorchDispatchMode):
    """Counts the operations of torch that would enqueue something."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        is_view = any(each.alias_info and not each.alias_info.is_write for each in _returns(func))
        if not is_view and not name.startswith(("empty", "new_empty")) and name not in FREE:
            calls["copy" if name == "copy_" and _is_transfer(args) else f"torch.{name}"] += 1
        return func(*args, **(kwargs or {}))


FREE: Final = ("detach", "record_stream")

_on_host: Final[list[Tensor]] = []
"""Memory that would be pinned; it is kept, so that nothing else comes to lie there."""


def _returns(func: Any) -> Sequence[Any]:
    found: Sequence[Any] = func._schema.returns
    return found


def _is_transfer(tensors: Sequence[Tensor]) -> bool:
    """Tell whether one of two tensors would be on the host, and the other one not."""
    one, other = (_would_be_on_host(tensor) for tensor in tensors[:2])
    return one != other


def _would_be_on_host(tensor: Tensor) -> bool:
    address = tensor.data_ptr()
    return any(0 <= address - host.data_ptr() < host.nbytes for host in _on_host)


def _pinned(tensor: Tensor) -> Tensor:
    _on_host.append(tensor)
    return tensor


class _Event:
    def query(self) -> bool:
        calls["event query"] += 1
        return True

    def record(self) -> None:
        calls["event record"] += 1


class _Block(addresses._Block):
    def __init__(self, on_device: Tensor, count: int) -> None:
        super().__init__(on_device, count)
        self._event: Any = _Event()
        for host in self._hosts:
            _pinned(host)


class _Packed(PackedNumbers):
    def __init__(self, num_layers: int, device: torch.device) -> None:
        super().__init__(num_layers, device)
        ctypes.memset(self._begin, 0, self._end - self._begin)  # as if kernels had counted nothing


class _Launcher:
    def __init__(self, *_: object) -> None:
        pass

    def __call__(self, *_: object) -> None:
        calls["launch"] += 1


class _Utils:
    def load_binary(self, *_: object) -> tuple[int, int, int, int, int]:
        calls["module"] += 1
        return 1, 1, 64, 0, 1024

    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": 100_000}


class _Driver:
    launcher_cls = _Launcher
    utils = _Utils()

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class _Operations(TorchDispatchMode):
    """Counts what torch is asked for beside views: on a device each is a call, or several."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            calls["torch operation"] += 1
        return func(*args, **(kwargs or {}))


def _always(device: torch.device) -> bool:
    return isinstance(device, torch.device)


def _is_capturing() -> bool:
    calls["capture query"] += 1
    return False


def count() -> None:
    norm_slots.is_for_kernel = _always
    addresses._Block = _Block  # type: ignore[misc]
    driver.set_active(_Driver())
    logging.getLogger("gradwatch").setLevel(logging.ERROR)  # nobody takes the records
    for module in (readback, step_sample):
        module.is_far = lambda _: True  # type: ignore[attr-defined]
    for module in (recorder, step_history):
        module.on_host = lambda loss: loss  # type: ignore[attr-defined]  # it would be on a device
    step_sample.PackedNumbers = _Packed  # type: ignore[attr-defined]
    updates.statistics = cuda_statistics  # type: ignore[assignment, attr-defined]
    updates._is_on_host = lambda device: not _always(device)
    step_sample.statistics = cuda_statistics  # type: ignore[assignment, attr-defined]
    memory = partial(torch.empty, dtype=torch.float64)
    readback._new_memory = lambda size: _pinned(memory(size))
    readback.Readback._is_captured = lambda *_: _is_capturing()  # type: ignore[method-assign]
    capture.is_capturing = _is_capturing


def parameters(number: int, numel: int, *dtypes: torch.dtype) -> list[nn.Parameter]:
    """Return parameters with gradients, of these types in turn."""
    made = [nn.Parameter(torch.zeros(numel, dtype=dtypes[i % len(dtypes)])) for i in range(number)]
    renew(made)
    return made


def renew(some: Sequence[nn.Parameter]) -> None:
    """Give them other gradients, at other addresses."""
    old = [parameter.grad for parameter in some]
    for parameter in some:
        parameter.grad = torch.zeros_like(parameter)
    del old


def measure(some: Sequence[nn.Parameter]) -> None:
    """Enqueue all six statistics."""
    gradients: list[Any] = [parameter.grad for parameter in some]
    found = cuda_statistics(gradients, MEASURED_COLUMNS)
    assert (found.path, found.declined) == ("triton", ""), found.declined


def driver_calls(
    *dtypes: torch.dtype, number: int = 8, updates_every: int = 0
) -> list[dict[str, int]]:
    """Return what each of some collections of a watch asks for, the loss and all addresses new.

    The collections are those of a step: its backward pass, `collect`, the optimizer's step. What it
    asks for without a watch is not in it.
    """
    some = parameters(number, 200_000, *dtypes)
    model = nn.ParameterList(some)
    optimizer = torch.optim.SGD(some, lr=0.0, foreach=True)
    without = _calls_of_step(some, optimizer, None)
    watch = gradwatch.attach(
        *(model, optimizer),
        run="bench-kernel",
        columns=MEASURED_COLUMNS,
        endpoint=NOWHERE,
        every=1,
        updates_every=updates_every,
    )
    try:
        found = [_calls_of_step(some, optimizer, watch) for _ in range(WARM_STEPS + STEPS)]
        assert watch.stats()["faults"] == 0, watch.stats()["last_error"]
    finally:
        watch.close()
    return [dict(each - without) for each in found[WARM_STEPS:]]


def _calls_of_step(
    some: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, watch: Any
) -> Counter[str]:
    calls.clear()
    old = [parameter.grad for parameter in some]
    with Operations():  # type: ignore[no-untyped-call]  # torch has no annotation
        optimizer.zero_grad()
        loss = torch.stack([parameter.sum().float() for parameter in some]).sum()
        loss.backward()
        if watch is not None:
            watch.collect(loss=loss)
        optimizer.step()
    del old
    return calls.copy()


def variants(num_steps: int) -> dict[str, list[int]]:
    """Return how many variants are compiled while the set of layers changes in each step.

    Returns:
        For each dtype those compiled to warm up, and those compiled in the steps after that.
    """
    found = {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        before = calls["module"]
        assert not warm_up(torch.device("cpu"), [dtype])
        warm = calls["module"]
        some = parameters(40, 1, dtype) + parameters(3, 200_000, dtype)
        for step in range(num_steps):
            measure(some[step % 37 :: 1 + step % 3])
        found[str(dtype).removeprefix("torch.")] = [warm - before, calls["module"] - warm]
    return found


def hook_calls(number: int, num_passes: int = 1) -> dict[str, int]:
    """Return what hooks on so many tensors ask for in a step, and who takes the norms then.

    Each step has other addresses. With several passes the larger norm is kept.
    """
    dtype = torch.float32
    slots = NormSlots([Expected(torch.device("cpu"), [dtype], 4 * 200_000)] * number)
    some = [torch.zeros(200_000) for _ in range(4)]
    calls.clear()
    with _Operations():  # type: ignore[no-untyped-call]
        for turn in range(num_passes):
            for index in range(number):
                slot = measure_norm(some[index % len(some)], slots, index)
                (slots.keep_larger if turn else slots.keep)(index, slot)
        taken = slots.take(range(number))
    assert len(taken) == number
    return dict(calls)


def norm_variants() -> dict[str, list[int]]:
    """Return how many variants of the hooks' kernels are compiled to warm up, and afterwards."""
    found = {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        before = calls["module"]
        assert not norms.warm_up(torch.device("cpu"), [dtype])
        warm = calls["module"]
        for numel in (1, 16, 17, 4096, 200_000):
            slots = NormSlots([Expected(torch.device("cpu"), [dtype], each) for each in (1, numel)])
            for offset in (0, 1):
                gradient = torch.zeros(numel + 1, dtype=dtype)[offset:]
                for keep in (slots.keep, slots.keep_larger):
                    keep(1, measure_norm(gradient, slots, 1))
            slots.take([1])
        found[str(dtype).removeprefix("torch.")] = [warm - before, calls["module"] - warm]
    return found


def main() -> dict[str, Any]:
    count()
    return {
        "variants": variants(60),
        "one": driver_calls(torch.float32),
        "two": driver_calls(torch.float32, torch.bfloat16),
        "updates": driver_calls(torch.float32, number=40, updates_every=8),
        "norm_variants": norm_variants(),
        "local": hook_calls(148),
        "local, two passes": hook_calls(148, 2),
        "blocks": hook_calls(48),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main()))
