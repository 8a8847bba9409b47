"""Checks of the data directory: whose it is, where it lies, how much room there is, who has it."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from gradwatch_server.cli.doctor.finding import Finding, error, ok, skipped, warning
from gradwatch_server.cli.doctor.server.subject import ServerSide

LEAST_FREE_BYTES: Final = 256 << 20
"""Below this a disk counts as full: what is written between two looks at the sizes has to fit."""

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_NODE: Final = "a node of a cluster keeps no data"
_ANOTHER: Final = "or choose another directory with --data"


def look_at_directory(subject: ServerSide) -> Finding:
    """Ask whether it can be used, and who else may."""
    directory = subject.settings.data
    if subject.settings.cluster is not None:
        return skipped(_NODE)
    if not directory.exists():
        parent = _existing(directory)
        if fault := _write_fault(parent):
            return error(f"{directory} cannot be made in {parent}: {fault}", f"make it, {_ANOTHER}")
        return ok(f"{directory.absolute()} is not there yet: serve makes it")
    if not directory.is_dir():
        return error(f"{directory} is no directory", f"move it away, {_ANOTHER}")
    found = directory.stat()
    if fault := _use_fault(subject, directory):
        says = f"{directory} (owner {found.st_uid}) cannot be written by this user ({os.getuid()})"
        return error(f"{says}: {fault}", f"run: chown -R {os.getuid()} {directory}, {_ANOTHER}")
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS:
        says = f"{directory}: mode {mode:04o} lets others in"
        return warning(says, f"run: chmod 700 {directory}")
    if found.st_uid != os.getuid():
        says = f"{directory} is of user {found.st_uid}, this is user {os.getuid()}"
        return warning(says, "run this, and gradwatch serve, as the user that it belongs to")
    return ok(f"{directory.absolute()}, mode {mode:04o}")


def look_at_filesystem(subject: ServerSide) -> Finding:
    """Ask whether another machine may have its files open."""
    if subject.settings.cluster is not None:
        return skipped(_NODE)
    kind = subject.store.network_type
    if kind is None:
        return ok("on no network file system, as far as the system tells")
    says = f"{subject.settings.data} is on a network file system ({kind}), where it may be damaged"
    if subject.settings.allow_network_fs:
        return warning(f"{says}; allow_network_fs is set", "choose a local disk with --data")
    return error(says, "choose a local disk with --data, or accept it with allow_network_fs")


def look_at_disk(subject: ServerSide) -> Finding:
    """Compare the space that is free with what the settings let the data grow to."""
    if subject.settings.cluster is not None:
        return skipped(_NODE)
    settings = subject.settings
    sizes = os.statvfs(_existing(settings.data))
    free = sizes.f_bavail * sizes.f_frsize
    most = settings.log_max_bytes + settings.series_max_bytes + settings.alerts_max_bytes
    grows = max(most - subject.store.used_bytes, 0)
    says = f"{_size(free)} free, the data may grow by {_size(grows)}"
    if free < min(LEAST_FREE_BYTES, grows):
        return error(
            f"{says}: as good as full, when nothing more is taken in", f"make room, {_ANOTHER}"
        )
    if free < grows:
        advice = "make room, or lower log_max_bytes, series_max_bytes or alerts_max_bytes"
        return warning(f"{says}: when it is full nothing more is taken in", advice)
    if sizes.f_files and not sizes.f_favail:
        return error("the file system takes no further file (inodes)", f"delete some, {_ANOTHER}")
    return ok(says)


def look_at_lock(subject: ServerSide) -> Finding:
    """Ask whether an aggregator has the directory, or one left it without an end."""
    if subject.settings.cluster is not None:
        return skipped(_NODE)
    store, directory = subject.store, subject.settings.data
    if store.holder is not None:
        return ok(f"{directory} is in use by an aggregator that runs (pid {store.holder})")
    if store.is_unclean:
        return ok(
            f"the last aggregator (pid {store.last_holder}) was killed: the next one goes on from "
            "what is on the disk"
        )
    return ok("no aggregator has it")


def look_at_database(subject: ServerSide) -> Finding:
    """Read the head of the file that the data is in."""
    if subject.settings.cluster is not None:
        return skipped(_NODE)
    store, directory = subject.store, subject.settings.data
    if store.written_ns is None:
        return skipped("there is none yet")
    if store.schema is None and store.is_ours:
        return ok(f"its schema version is not in the file yet; {_size(store.used_bytes)}")
    if store.schema is None:
        return _foreign(directory)
    says = f"schema version {store.schema}, this gradwatch reads up to {store.newest_schema}"
    if store.schema > store.newest_schema:
        return error(says, f"use the gradwatch that wrote it, {_ANOTHER}")
    if not store.is_ours:
        return _foreign(directory)
    return ok(f"{says}; {_size(store.used_bytes)}")


def _foreign(directory: Path) -> Finding:
    says = f"the database in {directory} does not begin as one of gradwatch"
    return error(says, f"move it away to start afresh, {_ANOTHER}")


def _use_fault(subject: ServerSide, directory: Path) -> str:
    """Return why a directory that is there cannot be used; without a trace in one that is."""
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return os.strerror(errno.EACCES)
    try:
        has_been_used = subject.store.last_holder is not None
    except OSError:  # of another user
        return ""
    return "" if has_been_used else _write_fault(directory)


def _write_fault(directory: Path) -> str:
    """Return why nothing can be made in a directory, by making and removing something.

    Modes alone do not say so: to root they allow everything, in `/proc`, too.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".gradwatch-doctor-", dir=directory):
            return ""
    except OSError as fault:
        return fault.strerror or str(fault)


def _existing(path: Path) -> Path:
    """Return a path, or the nearest above it that is there."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB" if num_bytes >= 1 << 29 else f"{num_bytes >> 20} MiB"
