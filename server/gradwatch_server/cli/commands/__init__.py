"""The commands, a file for each. Each is listed in `COMMANDS`, in the order of the help.

One that has commands below it is a `Typer` of its own.
"""

from gradwatch_server.cli.commands import (
    ack,
    alerts,
    doctor,
    export,
    health,
    keys,
    notify,
    replay,
    rules,
    runs,
    serve,
    silence,
    tail,
    top,
)

COMMANDS = (
    serve.serve,
    keys.keys,
    runs.runs,
    top.top,
    health.health,
    tail.tail,
    alerts.alerts,
    ack.ack,
    silence.silence,
    rules.rules,
    export.export,
    notify.notify,
    replay.replay,
    doctor.doctor,
)
