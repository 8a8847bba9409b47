"""The `gradwatch` command, also as `python -m gradwatch_server`."""

import sys


def main() -> None:
    """Run the command line, or exit 1 with the pip line that installs what it needs."""
    try:
        from gradwatch_server.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"gradwatch_server", "gradwatch_wire"}:
            raise  # a part of our own: no extra would bring it
        sys.exit(
            f"gradwatch: the command needs {error.name}, which is not installed; "
            "run: pip install 'gradwatch[server]'"
        )
    app()


if __name__ == "__main__":
    main()
