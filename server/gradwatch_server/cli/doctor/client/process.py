"""Checks of what trains: the switch, what is installed, the device's build, the spill directory."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gradwatch_server.cli.doctor.client.subject import ClientSide
from gradwatch_server.cli.doctor.finding import Finding, error, ok, skipped, warning
from gradwatch_server.cli.doctor.packages import complaints, of_extra, requirements, version_of
from gradwatch_wire import __version__
from gradwatch_wire.session.switch import is_disabled

DRIVERS: Final = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
"""One of them is there where this process may use an NVIDIA device."""

LEAST_FREE_BYTES: Final = 1 << 30
"""Room for the spill files of four ranks."""


def look_at_switch(_subject: ClientSide) -> Finding:
    """Ask whether gradwatch is switched off."""
    if is_disabled():
        value = os.environ["GRADWATCH_DISABLED"]
        says = f"GRADWATCH_DISABLED={value!r}: attach() returns a watch that does nothing"
        return warning(says, "unset it where training is to be watched")
    return ok("GRADWATCH_DISABLED does not switch gradwatch off")


def look_at_packages(_subject: ClientSide) -> Finding:
    """Compare what is installed with what is asked for."""
    known = requirements()
    if not known:
        return skipped("gradwatch is used without being installed: nobody says what it needs")
    own = [each for each in known if not each.extra]
    advice = "run: pip install --upgrade 'gradwatch[client]'"
    if found := complaints(own):
        return error("; ".join(found), advice)
    versions = ", ".join(f"{each.name} {each.installed()}" for each in own)
    says = f"gradwatch {__version__}, Python {platform.python_version()}, {versions}"
    if found := complaints(of_extra("client", known)):
        return warning(f"{says}; {'; '.join(found)}, so nothing can be watched here", advice)
    return ok(f"{says}, torch {version_of('torch')}")


def look_at_device(_subject: ClientSide) -> Finding:
    """Compare the build of torch with the device, and ask for what compiles kernels."""
    torch = version_of("torch")
    if torch is None:
        return skipped("torch is not installed here")
    if not any(driver.exists() for driver in DRIVERS):
        return skipped(f"torch {torch}; no NVIDIA driver here")
    if torch.endswith("+cpu"):
        says = f"there is an NVIDIA driver, and torch {torch} is a build without CUDA"
        return warning(says, "install a build with CUDA: https://pytorch.org/get-started")
    if find_spec("triton") is None:
        says = "Triton is not installed: statistics take several kernels instead of two"
        return warning(says, "run: pip install triton, of the version that this torch asks for")
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        says = "there is no C compiler, without which Triton compiles nothing"
        return warning(says, "install gcc, or set CC")
    return ok(f"torch {torch}, Triton {version_of('triton')}, a driver and a C compiler")


def look_at_foreach(_subject: ClientSide) -> Finding:
    """Ask whether the fast path of norms is switched off."""
    value = os.environ.get("GRADWATCH_FOREACH")
    if value == "0":
        return warning(
            "GRADWATCH_FOREACH=0: norms are computed tensor by tensor, which is slow",
            "unset it, unless it was set for a fault of torch",
        )
    return ok("GRADWATCH_FOREACH does not switch the fast norms off")


def look_at_spill(_subject: ClientSide) -> Finding:
    """Look at the directory of spill files."""
    given = os.environ.get("GRADWATCH_SPILL")
    if not given:
        return skipped("GRADWATCH_SPILL is not set; attach(spill=...) may give one")
    directory = Path(given)
    if not directory.exists():
        return ok(f"{directory} is not there yet: attach() makes it")
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        says = f"GRADWATCH_SPILL={given!r} is no directory that this user can write"
        return error(says, "set it to one")
    sizes = os.statvfs(directory)
    free = sizes.f_bavail * sizes.f_frsize
    if free < LEAST_FREE_BYTES:
        says = f"{free >> 20} MiB are free in {directory}, each rank may take 256 MiB (spill_bytes)"
        return warning(says, "make room, or set another directory")
    return ok(f"{directory}: {free >> 30} GiB free")
