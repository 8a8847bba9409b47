"""The arguments of `attach` and of `Watch.collect`: each is returned as it is used, or refused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final

from torch import Tensor
from torch.optim import Optimizer

from gradwatch._hooks.optimizer_steps import unwrapped
from gradwatch._layers.layers import Layer
from gradwatch._layers.shards import is_replicated
from gradwatch._statistics.devices import why_unsupported
from gradwatch._statistics.gradients import is_distributed, local_part
from gradwatch_wire.columns import L2, MEASURED_COLUMNS
from gradwatch_wire.limits import MAX_BATCH_BYTES, MAX_PARTS, MAX_STEP
from gradwatch_wire.names import SilentBug

OVERHEAD_VARIABLE: Final = "GRADWATCH_OVERHEAD"
"""Environment variable that goes before the argument: `none`, or a number."""

_CUT: Final = "…"

LAST_STEP: Final = MAX_STEP // 2
"""Last step that may be given: counting on from it stays within the wire's range."""


def checked_step(step: int | None) -> int | None:
    """Return the step.

    Raises:
        ValueError: If it is no integer in range.
    """
    if step is not None and (type(step) is not int or not 0 <= step <= LAST_STEP):
        msg = f"step: an integer from 0 to {LAST_STEP}, got {step!r}"
        raise ValueError(msg)
    return step


def checked_loss(loss: Tensor | float | None) -> Tensor | float | None:
    """Return the loss as a number or a 0-d tensor on its device.

    Raises:
        ValueError: If it is not one real number, or not all of it is on this rank.
    """
    if isinstance(loss, Tensor):
        if loss.numel() != 1 or loss.is_complex():
            msg = f"loss: a number or a one-element tensor, got shape {tuple(loss.shape)}"
            raise ValueError(msg)
        return _whole(loss).detach().reshape(())
    return None if loss is None else float(loss)


def _whole(loss: Tensor) -> Tensor:
    """Return what this rank holds of a loss, which has to be all of it.

    Raises:
        ValueError: If it is a DTensor whose value only a collective would tell.
    """
    if is_distributed(loss) and not is_replicated(loss):
        placements: object = loss.placements  # type: ignore[attr-defined]  # a DTensor
        msg = f"loss: a DTensor with placements {placements}; pass loss.full_tensor()"
        raise ValueError(msg)
    return local_part(loss)


def checked_size(batch_size: int | None) -> float | None:
    """Return the batch size.

    Raises:
        TypeError: If it is no number; a tensor would have to be synchronised for.
    """
    if batch_size is not None and not isinstance(batch_size, (int, float)):
        msg = f"batch_size: a number, got {type(batch_size).__name__}"
        raise TypeError(msg)
    return None if batch_size is None else float(batch_size)


def checked_batch(batch: int | str | Iterable[int | str] | None) -> str:
    """Return the identity of a batch as text of at most `MAX_BATCH_BYTES`, whose rest is cut off.

    Raises:
        TypeError: If it is neither an integer, nor a string, nor several of these. A tensor would
            have to be synchronised for.
    """
    if batch is None:
        return ""
    several = not isinstance(batch, (int, str, Tensor))
    parts = list(batch) if several and isinstance(batch, Iterable) else [batch]
    if not all(isinstance(part, (int, str)) for part in parts):
        msg = f"batch: an integer, a string or a list of these, got {type(batch).__name__}"
        raise TypeError(msg)
    text = ",".join(map(str, parts)).encode("utf-8", "replace")
    if len(text) <= MAX_BATCH_BYTES:
        return text.decode()
    return text[: MAX_BATCH_BYTES - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT


def checked_optimizers(optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    """Return the optimizers as a list.

    Raises:
        TypeError: If one is none.
        ValueError: If one is given twice.
    """
    if optimizer is None:
        return []
    given: Sequence[object] = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    optimizers: list[Optimizer] = []
    for item in given:
        if not isinstance(item, Optimizer):
            msg = f"optimizer: a torch.optim.Optimizer or a list of them, got {type(item).__name__}"
            raise TypeError(msg)
        optimizers.append(item)
    if len(optimizers) > MAX_PARTS:
        msg = (
            f"optimizer: at most {MAX_PARTS}, got {len(optimizers)}; attach without them and call "
            "collect() once per step, or train several parameters with each"
        )
        raise ValueError(msg)
    if len({id(unwrapped(item)) for item in optimizers}) < len(optimizers):
        msg = "optimizer: one of them is given twice"
        raise ValueError(msg)
    for item in optimizers:
        if not hasattr(unwrapped(item), "_optimizer_step_pre_hooks"):
            msg = (
                f"optimizer: {type(item).__name__} is not a complete torch.optim.Optimizer (its "
                "__init__ never ran); pass the optimizer that it wraps"
            )
            raise TypeError(msg)
    return optimizers


def check_membership(optimizers: Sequence[Optimizer], layers: Sequence[Layer]) -> None:
    """Refuse an optimizer that trains nothing of what is watched.

    Raises:
        ValueError: If there is one.
    """
    watched = {id(layer.parameter) for layer in layers}
    for number, optimizer in enumerate(optimizers):
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not own & watched:
            which = f"optimizer {number}" if len(optimizers) > 1 else "optimizer"
            msg = (
                f"optimizer: none of the {len(own)} parameters of the {which} is a watched "
                "parameter of the model"
            )
            raise ValueError(msg)


def check_devices(layers: Sequence[Layer]) -> None:
    """Refuse a model on a device whose gradients would be read wrongly, or not without a wait.

    Raises:
        ValueError: If a watched parameter is on one.
    """
    for layer in layers:
        device = layer.parameter.device  # what is on meta is left out later, one by one
        if why := why_unsupported(device):
            what = f"model: {layer.name} is on {device}; {why}"
            msg = f"{what}; set GRADWATCH_DISABLED=1 to train without"
            raise ValueError(msg)


def find_untrained(optimizers: Sequence[Optimizer], layers: Sequence[Layer]) -> list[str]:
    """Return the names of layers that require a gradient and that no optimizer trains.

    There are none without optimizers: then `collect` measures all layers.
    """
    groups = [group for each in optimizers for group in each.param_groups]
    trained = {id(p) for group in groups for p in group["params"]}
    return [
        layer.name
        for layer in layers
        if optimizers and layer.parameter.requires_grad and id(layer.parameter) not in trained
    ]


def check_on_alert(on_alert: object) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: If it is neither None nor callable.
    """
    if on_alert is not None and not callable(on_alert):
        msg = f"on_alert: a function of one alert, got {type(on_alert).__name__}"
        raise TypeError(msg)


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the columns in the order of the wire, `l2` among them; None if none were asked for.

    Raises:
        TypeError: If it is no list.
        ValueError: If there is no such column.
    """
    if columns is None:
        return None
    given = _checked_names("columns", columns, MEASURED_COLUMNS)
    return tuple(name for name in MEASURED_COLUMNS if name in given or name == L2)


def checked_expected(expected: Sequence[str]) -> tuple[str, ...]:
    """Return the signs that are meant so, each once.

    Raises:
        TypeError: If it is no list.
        ValueError: If there is no such sign.
    """
    known = [each.value for each in SilentBug]
    given = _checked_names("expected", expected, known)
    return tuple(name for name in known if name in given)


def _checked_names(argument: str, names: object, known: Sequence[str]) -> list[str]:
    """Return the names, of which one may come alone; all have to be known."""
    if not isinstance(names, Iterable):
        msg = f"{argument}: a list of names, got {type(names).__name__}"
        raise TypeError(msg)
    given = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in given if name not in known]
    if unknown:
        msg = f"{argument}: some of {', '.join(known)}, got {unknown[0]!r}"
        raise ValueError(msg)
    return given


def find_overhead(given: object) -> float | None:
    """Return the share of the training's time that measuring may take, None without a limit.

    Raises:
        TypeError: If it is neither None nor a number.
        ValueError: If it is not between 0 and 1.
    """
    share = None if given is None else _checked_share("overhead", given)
    text = os.environ.get(OVERHEAD_VARIABLE)
    if not text:
        return share
    if text.lower() == "none":
        return None
    try:
        share = float(text)
    except ValueError:
        msg = f"{OVERHEAD_VARIABLE}: none or a number between 0 and 1, got {text!r}"
        raise ValueError(msg) from None
    return _checked_share(OVERHEAD_VARIABLE, share)


def _checked_share(name: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        msg = f"{name}: None or a number between 0 and 1, got {given!r}"
        raise TypeError(msg)
    if not 0.0 < given < 1.0:
        msg = f"{name}: above 0 and below 1, such as 0.01, got {given}"
        raise ValueError(msg)
    return float(given)


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither true nor false.

    Raises:
        TypeError: If it is no boolean.
    """
    if not isinstance(value, bool):
        msg = f"{name}: True or False, got {value!r}"
        raise TypeError(msg)


def check_count(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number, too small, or too large.

    Raises:
        TypeError: If it is no integer.
        ValueError: If it is below *least* or above *most*.
    """
    if type(value) is not int:
        msg = f"{name}: a whole number, got {value!r}"
        raise TypeError(msg)
    if value < least:
        msg = f"{name}: at least {least}, got {value}"
        raise ValueError(msg)
    if most is not None and value > most:
        msg = f"{name}: at most {most}, got {value}"
        raise ValueError(msg)
