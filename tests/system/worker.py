"""A training process for the system tests: one rank, plain or DDP, with a fault on demand."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwatch

FAULTS = ("none", "batch", "local-weight", "after-reduction", "explode", "vanish")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause-s", type=float, default=0.01)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--fault-step", type=int, default=20)
    parser.add_argument("--fault-rank", type=int, default=0)
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--hold-at", type=int, default=-1, help="wait there for a line on stdin")
    parser.add_argument("--hold-rank", type=int, help="the rank that waits, all if not given")
    parser.add_argument("--buffer-bytes", type=int, default=32 << 20)
    parser.add_argument("--overhead", type=float)
    parser.add_argument("--more", action="store_true", help="blocks, groups, local norms")
    return parser.parse_args()


def say(line: str) -> None:
    """Print a line that the test reads."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def interrupt(args: argparse.Namespace, step: int, rank: int) -> None:
    """Die, or wait for a line, where the arguments say so."""
    if step == args.kill_at and rank == args.fault_rank:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == args.raise_at and rank == args.fault_rank:
        msg = "as told"
        raise RuntimeError(msg)
    if step == args.hold_at and args.hold_rank in (None, rank):
        say("holding")
        sys.stdin.readline()


def main() -> None:
    args = parse()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    if args.overhead is not None:
        os.environ.pop("GRADWATCH_OVERHEAD", None)  # it would go first
    torch.manual_seed(0)
    torch.set_num_threads(1)
    middle, last = nn.Linear(64, 64), nn.Linear(64, 10)
    inner = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), middle, last)
    model = DistributedDataParallel(inner) if world > 1 else inner
    torch.manual_seed(1 + rank)  # for the data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = gradwatch.attach(
        model,
        optimizer,
        run=args.run,
        overhead=args.overhead,
        buffer_bytes=args.buffer_bytes,
        blocks=inner if args.more else None,
        groups={"host": "[02].*", "seed": "3.*"} if args.more else None,
        local=args.more,
    )
    faulty = {"now": False}
    if args.fault == "local-weight":
        middle.weight.register_hook(lambda g: g * float("nan") if faulty["now"] else g)
    say("training")
    for step in range(args.steps):
        interrupt(args, step, rank)
        faulty["now"] = step >= args.fault_step and rank == args.fault_rank
        once = step == args.fault_step and faulty["now"]
        faulty["now"] = once
        batch = torch.randn(16, 32)
        if once and args.fault == "batch":
            batch[0, 0] = float("nan")
        loss = nn.functional.cross_entropy(model(batch), torch.randint(0, 10, (16,)))
        if step >= args.fault_step and args.fault in {"explode", "vanish"}:
            loss = loss * (1e6 if args.fault == "explode" else 1e-12)
        loss.backward()
        if once and args.fault == "after-reduction":
            assert last.bias.grad is not None
            last.bias.grad[0] = float("inf")
        watch.collect(loss=loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.pause_s)
    watch.close()
    say(f"rank={rank} collected={watch.stats()['collected']}")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
