"""The commands, a file for each. Each is listed in `COMMANDS`, in the order of the help."""

from gradwatch_server.cli.commands import health, keys, replay, runs, serve, tail

COMMANDS = (
    serve.serve,
    keys.keys,
    runs.runs,
    health.health,
    tail.tail,
    replay.replay,
)
