"""Errors as one line for a person, and an exit code for a script."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import typer

from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError

P = ParamSpec("P")
R = TypeVar("R")


def clear_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Print what a person can act on in one line, and exit 1."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except GradwatchError as error:
            print(f"gradwatch: {printable(str(error))}", file=sys.stderr)
            raise typer.Exit(1) from error
        except OSError as error:
            if error.filename is None:  # not about a path that somebody gave
                raise
            text = f"{error.filename}: {error.strerror}"
            print(f"gradwatch: {printable(text)}", file=sys.stderr)
            raise typer.Exit(1) from error

    return wrapped
