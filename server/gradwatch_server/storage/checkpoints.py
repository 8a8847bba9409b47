"""Checkpoints: a run as it was at an entry of its log, so that a restart applies only the rest.

Each run is saved by itself: a busy one often, a quiet one never.
"""

from __future__ import annotations

from collections.abc import Collection

from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.entries import Received
from gradwatch_server.core.run import Run
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_server.core.views.runs import summarize
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_server.storage.log import Log
from gradwatch_server.storage.rows import RunSave, SavedRun
from gradwatch_wire import Stats


def decode_run(saved: SavedRun, window_steps: int) -> Run:
    """Return a run that was saved, without the columns of its open records.

    Raises:
        Exception: Of any kind if it is not what was written.
    """
    run = decode(saved.body, Run)
    for body in saved.attempts.values():
        attempt = decode(body, Attempt)
        if not attempt.retired and attempt.window.capacity != window_steps:
            attempt.resize_window(window_steps)
        run.adopt(attempt)
    if not run.attempts:
        msg = "no attempt is saved"
        raise ValueError(msg)
    return run


def read_open_records(run: Run, log: Log) -> None:
    """Read the columns of the records that wait for other ranks, which a save leaves to the log.

    Raises:
        ValueError: If the log lacks one of them.
        StorageError: If it cannot be read.
    """
    unread = {record.entry: record for record in run.open_records()}
    if not unread:
        return
    for number, entry in log.entries(run.name, min(unread) - 1):
        if number in unread and isinstance(entry.body, Received):
            record = entry.body.envelope.record
            if isinstance(record, Stats):
                unread.pop(number).read(record.columns)
        if not unread:
            return
    msg = f"the log lacks entry {min(unread)}, whose step is open"
    raise ValueError(msg)


def encode_run(run: Run, newest: int | None, touched: Collection[int], now_ns: int) -> RunSave:
    """Return what is to be saved of a run.

    Args:
        newest: Number of its newest attempt that is saved; None if nothing is.
    """
    changed = [
        attempt
        for attempt in run.attempts
        if newest is None or attempt.number > newest or attempt.number in touched
    ]
    summary = None
    if not run.is_expected:
        summary = encode(summarize(view_run(run, run.rules), {}, now_ns))
    return RunSave(
        run=run.name,
        body=encode(run),
        whole=newest is None,
        summary=summary,
        attempts={attempt.number: encode(attempt) for attempt in changed},
        first_attempt=run.attempts[0].number,
    )
