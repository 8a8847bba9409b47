"""Identity of this process: arguments first, then `GRADWATCH_*`, then the launcher."""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from gradwatch_wire import Hello, __version__
from gradwatch_wire.health import RUN_NAME_RULE, is_run_name
from gradwatch_wire.limits import MAX_NAME_BYTES, MAX_RANKS
from gradwatch_wire.version import PROTOCOL_MINOR

_RANK_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
_JOB_VARIABLES: Final = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_RESTART_VARIABLES: Final = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


@dataclass(frozen=True, slots=True)
class Identity:
    """Place of this process in its job.

    Args:
        job: The launcher's job id and restart count, such as `7/0`. Without an id the rendezvous of
            several ranks tells jobs apart that run at the same time: `/0/node-3:29500`. Empty when
            there is none of these.
    """

    run: str
    rank: int
    world: int
    job: str
    is_generated: bool = False

    def hello(self, expected: tuple[str, ...] = ()) -> Hello:
        """Return how this process presents itself to the aggregator."""
        return Hello(
            run=self.run,
            rank=self.rank,
            world=self.world,
            host=_short(socket.gethostname()),
            pid=os.getpid(),
            job=_short(self.job),
            expected=expected,
            versions={
                "gradwatch": __version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                "protocol_minor": str(PROTOCOL_MINOR),
            },
        )


def find_identity(run: str | None) -> Identity:
    """Find run, rank and world size.

    Raises:
        TypeError: If *run* is no string.
        ValueError: If no run name can be found in a job of several processes, or what was found
            is not allowed.
    """
    if run is not None and not isinstance(run, str):
        msg = f"run: a string, got {type(run).__name__}"
        raise TypeError(msg)
    rank, world = find_rank()
    job = _first_variable(_JOB_VARIABLES)
    name = run or os.environ.get("GRADWATCH_RUN") or (as_run_name(job) if job else "")
    is_generated = not name
    if is_generated:
        if world > 1:
            msg = (
                f"run: a name is needed, the same on all {world} ranks; "
                "pass attach(run=...) or set GRADWATCH_RUN"
            )
            raise ValueError(msg)
        name = f"run-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    if not is_run_name(name):
        msg = f"run: {name!r} is not a run name; allowed are {RUN_NAME_RULE}"
        raise ValueError(msg)
    restarts = _first_variable(_RESTART_VARIABLES)
    # Behind the count: what comes before it names the launches that follow one another.
    rendezvous = _find_rendezvous() if world > 1 and not job else ""
    if rendezvous:
        job = f"/{restarts}/{rendezvous}"
    elif job or restarts:
        job = f"{job}/{restarts}"
    return Identity(name, rank, world, job, is_generated)


def find_rank(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return rank and world size from `torch.distributed`, the environment, or 0 of 1.

    Raises:
        ValueError: If the environment's are no numbers or do not fit together.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    for rank_name, world_name in _RANK_VARIABLES:
        if rank_name in environ and world_name in environ:
            given = f"{rank_name}={environ[rank_name]!r} {world_name}={environ[world_name]!r}"
            try:
                rank, world = int(environ[rank_name]), int(environ[world_name])
            except ValueError:
                msg = f"rank: {given} in the environment are not whole numbers"
                raise ValueError(msg) from None
            if not 0 <= rank < world <= MAX_RANKS:
                msg = f"rank: {given} in the environment; need 0 <= rank < world <= {MAX_RANKS}"
                raise ValueError(msg)
            return rank, world
    return 0, 1


def _find_rendezvous() -> str:
    """Return where the ranks of the job meet, which no two jobs at once share; empty if unknown."""
    address, port = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return f"{address}:{port}" if address and port else ""


def _first_variable(names: tuple[str, ...]) -> str:
    for name in names:
        # torchrun's own default for a job without an id.
        if os.environ.get(name, "none") not in ("", "none"):
            return os.environ[name]
    return ""


def as_run_name(name: str) -> str:
    """Return a name as a run name: what is not allowed becomes a dash, empty if nothing is left."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:128]


def _short(text: str) -> str:
    return text.encode("utf-8", "replace")[:MAX_NAME_BYTES].decode("utf-8", "ignore")


def is_disabled() -> bool:
    """Tell whether `GRADWATCH_DISABLED` switches gradwatch off."""
    return os.environ.get("GRADWATCH_DISABLED", "").lower() not in ("", "0", "false", "no")
