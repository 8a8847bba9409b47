"""Checks of what is installed: packages, extras, the libraries below them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Final

import zmq

from gradwatch_server.cli.doctor.finding import Finding, error, ok, skipped, warning
from gradwatch_server.cli.doctor.packages import complaints, of_extra, requirements, version_of
from gradwatch_server.cli.doctor.server.subject import ServerSide
from gradwatch_server.settings import Settings
from gradwatch_server.stores import store_library
from gradwatch_wire import __version__

EXTRAS: Final = ("cluster", "notify", "parquet", "tensorboard", "wandb", "mlflow")
"""Extras of which the aggregator's settings, or commands beside it, may need one."""

NEEDED: Final[Mapping[str, tuple[str, Callable[[Settings], bool]]]] = {
    "cluster": ("cluster", lambda own: own.cluster is not None),
    "notify": ("notify", lambda own: any(o.type == "apprise" for o in own.notify.root.values())),
}
"""Extra to the setting that may need it, and whether it does."""

_SAFE_LIBZMQ: Final = (4, 3, 3)


def look_at_packages(_subject: ServerSide) -> Finding:
    """Compare what is installed with what is asked for."""
    known = requirements()
    if not known:
        return skipped("gradwatch is used without being installed: nobody says what it needs")
    wanted = [each for each in known if not each.extra] + list(of_extra("server", known))
    found = complaints(wanted)
    if found:
        return error("; ".join(found), "run: pip install --upgrade 'gradwatch[server]'")
    versions = ", ".join(f"{each.name} {each.installed()}" for each in wanted)
    return ok(f"gradwatch {__version__}, Python {platform.python_version()}, {versions}")


def look_at_extras(subject: ServerSide) -> Finding:
    """Say which extras are installed, and whether the settings need another one."""
    known = requirements()
    lacking = {extra: complaints(of_extra(extra, known)) for extra in EXTRAS}
    for extra, (name, is_needed) in NEEDED.items():
        if is_needed(subject.settings) and lacking[extra]:
            detail = f"the setting {name!r} needs an extra: {'; '.join(lacking[extra])}"
            return error(detail, f"run: pip install 'gradwatch[{extra}]'")
    there = [extra for extra in EXTRAS if known and not lacking[extra]]
    return ok(f"installed: {', '.join(there) or 'none'}; the settings need no other")


def look_at_libzmq(subject: ServerSide) -> Finding:
    """Look at the library below pyzmq."""
    found = f"libzmq {zmq.zmq_version()}, pyzmq {version_of('pyzmq')}"
    if not zmq.has("curve"):
        advice = "install the wheel of pyzmq, which has it: pip install --force-reinstall pyzmq"
        says = f"{found}, built without CURVE: it takes no keys"
        needs_keys = subject.settings.keys_dir is not None
        return error(says, advice) if needs_keys else warning(says, advice)
    if zmq.zmq_version_info() < _SAFE_LIBZMQ:
        says = f"{found}: before 4.3.3 whoever reaches the port can end it (CVE-2020-15166)"
        return warning(says, "run: pip install --upgrade pyzmq, without --no-binary")
    return ok(found)


def look_at_sqlite(_subject: ServerSide) -> Finding:
    """Look at the library that stores the data."""
    library = store_library()
    if not library.will_do:
        says = f"SQLite {library.version}, at least {library.oldest} is needed"
        return error(says, "use a Python with a newer one")
    if library.has_wal_reset_fault:
        return ok(
            f"SQLite {library.version}; as it is older than 3.51.3 let nothing else write the file "
            "while an aggregator has it (gradwatch itself has one writer, and is not affected)"
        )
    return ok(f"SQLite {library.version}")
