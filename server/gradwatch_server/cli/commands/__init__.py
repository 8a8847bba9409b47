"""The commands, a file for each. Each is listed in `COMMANDS`, in the order of the help.

One that has commands below it is a `Typer` of its own.
"""

from gradwatch_server.cli.commands import (
    ack,
    alerts,
    health,
    keys,
    replay,
    rules,
    runs,
    serve,
    silence,
    tail,
)

COMMANDS = (
    serve.serve,
    keys.keys,
    runs.runs,
    health.health,
    tail.tail,
    alerts.alerts,
    ack.ack,
    silence.silence,
    rules.rules,
    replay.replay,
)
