"""`scripts/bench NAME` runs one benchmark; without a name it lists them."""

from __future__ import annotations

import argparse
import signal
import sys
from importlib import import_module

from benchmarks.registry import BENCHMARKS, OPTIONS, Value
from benchmarks.report import console


def main() -> None:
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure what gradwatch does and costs, each time beside a peer in the same "
        "run. The pages that state the figures name the command.",
    )
    commands = parser.add_subparsers(dest="name", metavar="NAME")
    for name, benchmark in BENCHMARKS.items():
        about = benchmark.figures.replace("%", "%%")
        command = commands.add_parser(name, help=about, description=about)
        for option, default in benchmark.options.items():
            _add_option(command, option, default)
    given = vars(parser.parse_args())
    name = given.pop("name")
    if name is None:
        parser.print_help()
        return
    if name == "gpu":  # it starts without what .venv has: `scripts/bench` does that
        parser.error("gpu is run by scripts/bench gpu")
    if given.get("write") and (given.get("only") or given.get("quick")):
        sys.exit("--write needs all of it: leave --only and --quick out")
    with console.status(name):  # minutes may pass; shown on a terminal only
        import_module(f"benchmarks.{BENCHMARKS[name].module}").run(**given)


def _add_option(command: argparse.ArgumentParser, option: str, default: Value) -> None:
    flag, about = f"--{option.replace('_', '-')}", OPTIONS[option]
    if default is False:
        command.add_argument(flag, action="store_true", help=about)
        return

    def value(text: str) -> Value:
        found = type(default)(text)
        if isinstance(found, int | float) and found < 1:
            msg = f"{text} was given, at least 1 is allowed"
            raise argparse.ArgumentTypeError(msg)
        return found

    value.__name__ = type(default).__name__  # in the words of what is refused
    help_ = f"{about} (default: {default})" if default else about
    command.add_argument(flag, type=value, default=default, help=help_)


if __name__ == "__main__":
    # So that children are ended and scratch directories removed on SIGTERM as on ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
