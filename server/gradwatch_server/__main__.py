"""The `gradwatch` command, also as `python -m gradwatch_server`."""

import gc
import sys

WITHOUT_SERVER = ("--version", "--help", "doctor", "replay")
"""Commands that work without the extra `server`."""


def main() -> None:
    """Run the command line, or exit 1 with the pip line that installs what it needs."""
    if sys.argv[1:] == ["--version"]:  # to import typer takes longer than all of this
        from gradwatch_wire import __version__

        sys.stdout.write(f"gradwatch {__version__}\n")
        return
    gc.disable()  # what an import makes stays: nothing to collect, and much to look through
    try:
        from gradwatch_server.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"gradwatch_server", "gradwatch_wire"}:
            raise  # a part of our own: no extra would bring it
        if sys.argv[1:] and sys.argv[1] in WITHOUT_SERVER:
            from gradwatch_server.cli import client_extra

            client_extra.main(sys.argv[1:])
            return
        sys.exit(
            f"gradwatch: the command needs {error.name}, which is not installed; "
            "run: pip install 'gradwatch[server]'"
        )
    gc.freeze()  # nor is there later
    gc.enable()
    app()


if __name__ == "__main__":
    main()
