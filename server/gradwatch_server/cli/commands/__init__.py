"""The commands, a file for each. Each is listed in `COMMANDS`, in the order of the help."""

from gradwatch_server.cli.commands import (
    ack,
    alerts,
    health,
    keys,
    replay,
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
    replay.replay,
)
