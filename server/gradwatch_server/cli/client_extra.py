"""The command where only the client is installed: `--version`, `--help`, `doctor` and `replay`.

It needs what the wire needs, pyzmq and msgpack; all other commands need the extra `server`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gradwatch_server.cli.doctor.client import CLIENT_CHECKS, ClientSide
from gradwatch_server.cli.doctor.report import document, exit_code, lines, run_checks
from gradwatch_server.cli.replay import find_key, replay_files, sent_line
from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError
from gradwatch_wire import __version__
from gradwatch_wire.names import DEFAULT_ENDPOINT

_ABOUT: Final = (
    "Gradient telemetry for PyTorch: which layer on which rank went wrong at which step."
)
_REST: Final = "All other commands need the aggregator: pip install 'gradwatch[server]'"
_REPLAY: Final = "Send the records that killed workers left on disk; none is stored twice."
_DOCTOR: Final = "Say what is in the way from a training to its aggregator, and what to do."


def main(arguments: Sequence[str]) -> None:
    """Run one of them; exit 1 with one line if it fails, 2 if it is not asked for rightly."""
    given = _parser().parse_args(arguments)
    try:
        given.command(given)
    except GradwatchError as error:
        sys.exit(f"gradwatch: {printable(str(error))}")


def _replay(given: argparse.Namespace) -> None:
    for sent in replay_files(
        given.files, given.endpoint, find_key(given.keys), remove=given.remove
    ):
        print(sent_line(sent))


def _doctor(given: argparse.Namespace) -> None:
    side = ClientSide(given.endpoint, given.url, given.keys)
    sides = {"client": list(run_checks(CLIENT_CHECKS, side))}
    print(*([json.dumps(document(sides))] if given.json else lines(sides)), sep="\n")
    sys.exit(exit_code(sides))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gradwatch", description=_ABOUT, epilog=_REST)
    parser.add_argument("--version", action="version", version=f"gradwatch {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    doctor = commands.add_parser("doctor", help=_DOCTOR, description=_DOCTOR)
    doctor.set_defaults(command=_doctor)
    doctor.add_argument("--url", help="HTTP address of the aggregator. [env var: GRADWATCH_URL]")
    doctor.add_argument("--json", action="store_true", help="Print JSON.")
    replay = commands.add_parser("replay", help=_REPLAY, description=_REPLAY)
    replay.set_defaults(command=_replay)
    replay.add_argument("files", nargs="+", type=Path, help="Spill files, or directories of them.")
    replay.add_argument(
        "--remove", action="store_true", help="Delete files whose records are all stored."
    )
    for each in (doctor, replay):
        each.add_argument(
            "--endpoint",
            default=os.environ.get("GRADWATCH_ENDPOINT", DEFAULT_ENDPOINT),
            help="Where the aggregator listens. "
            "[env var: GRADWATCH_ENDPOINT; default: %(default)s]",
        )
        each.add_argument(
            "--keys", type=Path, help="Key file of a client; without it the one in GRADWATCH_KEYS."
        )
    return parser
