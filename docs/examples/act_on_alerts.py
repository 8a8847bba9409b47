"""Acts on alerts while it trains: saves a checkpoint, lowers the learning rate, stops all ranks.

    gradwatch serve
    torchrun --standalone --nproc-per-node 2 docs/examples/act_on_alerts.py

`on_alert` is called in gradwatch's own thread, on each rank, at a moment of its own. So it only
notes what to do. The training loop agrees on it once a step, so that all ranks do it at the same
step: a collective that one rank leaves hangs all others.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwatch

ANSWERS = {"exploding": ("save", "lower_rate"), "nonfinite": ("stop",)}
"""Rule to what is done about it."""


class Reaction:
    """What alerts ask for, once for each alert, although ranks hear of it at different steps."""

    def __init__(self) -> None:
        self._asked: set[tuple[str, str]] = set()  # id of the alert, and what is to be done
        self._done: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def on_alert(self, alert: dict[str, Any]) -> None:
        """Note what to do when an alert fires, or says that it got worse."""
        # A consequence of another alert is info, as people are called once; it is acted on.
        matters = alert["severity"] != "info" or alert["part_of"] is not None
        if alert["state"] == "firing" and matters:
            with self._lock:
                self._asked.update((alert["id"], do) for do in ANSWERS.get(alert["rule"], ()))

    def agree(self) -> set[str]:
        """Return what is to be done now: the same on every rank."""
        with self._lock:
            mine = self._asked - self._done
        of_all: list[set[tuple[str, str]]] = [set()] * dist.get_world_size()
        dist.all_gather_object(of_all, mine)
        new = set().union(*of_all) - self._done
        self._done |= new
        return {action for _, action in new}


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, folder: Path) -> None:
    """Save a checkpoint; rank 0 does it for all, for they are alike."""
    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, folder / f"checkpoint-{step}.pt")


def lower_rate(optimizer: torch.optim.Optimizer) -> None:
    """Go on with a tenth of the learning rate."""
    for group in optimizer.param_groups:
        group["lr"] *= 0.1


def spoil(loss: Tensor, step: int, given: argparse.Namespace) -> Tensor:
    """Return the loss, spoilt where that was asked for."""
    if given.explode_step >= 0 and 0 <= step - given.explode_step < 3:
        return loss * 1e5
    if step == given.poison_step and dist.get_rank() == 1:
        return loss * float("nan")
    return loss


def train(given: argparse.Namespace) -> None:
    """Train one rank, until it is done or told to stop."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr)
    reaction = Reaction()
    dice = torch.Generator().manual_seed(rank)
    with gradwatch.attach(model, optimizer, run=given.run, on_alert=reaction.on_alert) as watch:
        for step in range(given.steps):
            x = torch.randn(16, 8, generator=dice)
            loss = spoil((model(x) - x.sum(1, keepdim=True)).square().mean(), step, given)
            optimizer.zero_grad()
            loss.backward()
            watch.collect(loss=loss)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if norm.isfinite():
                optimizer.step()

            asked = reaction.agree()
            if "save" in asked:
                save(model, optimizer, step, given.folder)
            if "lower_rate" in asked:
                lower_rate(optimizer)
            for action in sorted(asked):
                rate = optimizer.param_groups[0]["lr"]
                print(f"rank {rank} step {step}: {action}, learning rate {rate:g}", flush=True)
            if "stop" in asked:
                break
            time.sleep(given.pause_s)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train a little, and act on alerts.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--run", default="acts-on-alerts")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--pause-s", type=float, default=0.01, help="what a larger model takes")
    sabotage = parser.add_argument_group("sabotage")
    sabotage.add_argument("--explode-step", type=int, default=-1)
    sabotage.add_argument("--poison-step", type=int, default=-1)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        train(given)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
