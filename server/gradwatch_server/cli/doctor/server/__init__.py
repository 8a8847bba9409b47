"""The checks of the machine that an aggregator runs on, in the order in which they are made."""

from __future__ import annotations

from typing import Final

from gradwatch_server.cli.doctor.check import Check
from gradwatch_server.cli.doctor.server import (
    configuration,
    data_directory,
    packages,
    ports,
    system,
)
from gradwatch_server.cli.doctor.server.subject import ServerSide

SERVER_CHECKS: Final[tuple[Check[ServerSide], ...]] = (
    Check(
        "packages",
        "versions of gradwatch, Python and the packages that the aggregator needs",
        "one is missing, or not of a version that is asked for",
        "",
        packages.look_at_packages,
    ),
    Check(
        "sqlite",
        "the SQLite library of this Python",
        "it is older than 3.24",
        "",
        packages.look_at_sqlite,
    ),
    Check(
        "settings",
        "options, `GRADWATCH_*` and the settings file, as `serve` reads them",
        "a file is missing or malformed, a setting unknown or not allowed",
        "",
        configuration.look_at_settings,
    ),
    Check(
        "libzmq",
        "the ZeroMQ library below pyzmq",
        "keys are asked for, and it cannot encrypt",
        "it cannot encrypt, or is older than 4.3.3, which strangers can crash",
        packages.look_at_libzmq,
        needs=("settings",),
    ),
    Check(
        "extras",
        "which extras are installed, and which the settings need",
        "the settings need one that is not installed",
        "",
        packages.look_at_extras,
        needs=("settings",),
    ),
    Check(
        "exposure",
        "whether other machines reach an address, and what they are asked for",
        "",
        "whoever reaches an address gets in, or tokens travel in the clear",
        configuration.look_at_exposure,
        needs=("settings",),
    ),
    Check(
        "keys",
        "the keys directory: owner, modes, pairs, tokens",
        "a file is missing, malformed or open to others",
        "the key of a client in it is open to others",
        configuration.look_at_keys,
        needs=("settings",),
    ),
    Check(
        "certificate",
        "certificate and key of the HTTP side",
        "one is missing, they do not belong together, or all may read the key",
        "",
        configuration.look_at_certificate,
        needs=("settings",),
    ),
    Check(
        "preparation",
        "what `serve` makes of the settings before it opens anything: targets of notifications, "
        "the collector of metrics",
        "a URL or a variable is missing or malformed, or a library cannot be used",
        "",
        configuration.look_at_preparation,
        needs=("extras", "keys", "certificate"),
    ),
    Check(
        "directory",
        "the data directory: whether it is there or can be made, owner, mode",
        "it cannot be made, or not be written by this user",
        "others may enter it, or it belongs to another user",
        data_directory.look_at_directory,
        needs=("settings",),
    ),
    Check(
        "filesystem",
        "the file system of the data directory",
        "it is one of the network",
        "it is one of the network, and `allow_network_fs` is set",
        data_directory.look_at_filesystem,
        needs=("directory",),
    ),
    Check(
        "disk",
        "free space against `log_max_bytes`, `series_max_bytes` and `alerts_max_bytes`",
        "less than 256 MiB are free, or no further file can be made",
        "the data can grow beyond what is free",
        data_directory.look_at_disk,
        needs=("directory",),
    ),
    Check(
        "lock",
        "whether an aggregator has the data directory, and how the last one ended",
        "",
        "",
        data_directory.look_at_lock,
        needs=("directory",),
    ),
    Check(
        "database",
        "the head of the file that the data is in",
        "a newer gradwatch wrote it, or it is none of ours",
        "",
        data_directory.look_at_database,
        needs=("directory",),
    ),
    Check(
        "http-address",
        "the address of the HTTP API",
        "something else has it, an aggregator of other data too, or this machine cannot listen",
        "",
        ports.look_at_http_address,
        needs=("directory",),
    ),
    Check(
        "ingest-address",
        "the endpoint that records go to",
        "something else has it, an aggregator of other data too, or this machine cannot listen",
        "",
        ports.look_at_ingest_address,
        needs=("directory",),
    ),
    Check(
        "aggregator",
        "the aggregator that runs here with this data, if one does",
        "it takes nothing in",
        "it found data missing when it started",
        ports.look_at_aggregator,
        needs=("settings",),
    ),
    Check(
        "open-files",
        "how many files may be open, against the budgets of connections",
        "",
        "fewer connections get in than the budgets say",
        system.look_at_open_files,
        needs=("settings",),
    ),
    Check(
        "clock",
        "the system's clock beside the steady one, and beside the data's last change",
        "it was never set",
        "it jumps, or the data was written later than now",
        system.look_at_clock,
        needs=("directory",),
    ),
)
