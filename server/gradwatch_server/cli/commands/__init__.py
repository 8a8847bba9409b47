"""The commands, a file for each, with the first line of their help in the order of the help.

A module has a function, or a `Typer` with commands below it, of its own name. It is imported when
somebody asks for the command.
"""

from typing import Final

COMMANDS: Final = {
    "serve": "Run the aggregator until it is told to stop; SIGHUP reads the rules anew.",
    "demo": "Train a small model in two processes, break it twice, and show what gradwatch says.",
    "keys": "Make the keys and tokens that let clients and readers in from other machines.",
    "runs": "List the runs.",
    "top": "Show the runs, or one of them, live in the terminal.",
    "health": "Say how a run is and where it went wrong.",
    "tail": "Print alerts as they happen, across restarts of the aggregator, until interrupted.",
    "alerts": "List alerts as they stand, the oldest first; times are UTC, of the aggregator.",
    "ack": "Say that you know of an alert; it goes on, and others see who knows.",
    "silence": "Keep the alerts that fit the patterns from being told; without patterns list the "
    "silences.",
    "rules": "Show the rules in force; `gradwatch rules check FILE` tries others.",
    "export": "Write what is kept of a run into files that others read.",
    "notify": "Test the targets of notifications, and say how each is.",
    "replay": "Send the records that killed workers left on disk; none is stored twice.",
    "doctor": "Say what keeps gradwatch from working here, and what to do.",
}
