"""The right to a session's files is with one process at a time."""

from __future__ import annotations

from pathlib import Path

from gradwatch_wire.session.session_lock import SessionLock

SESSION = b"s" * 16


def test_a_session_is_locked_by_one_at_a_time(tmp_path: Path) -> None:
    lock = SessionLock.acquire(tmp_path, SESSION)
    assert lock is not None
    assert SessionLock.acquire(tmp_path, SESSION) is None
    lock.release(remove=True)
    again = SessionLock.acquire(tmp_path, SESSION)
    assert again is not None
    again.release(remove=True)

    assert list(tmp_path.iterdir()) == []
