"""The lock of a data directory: one process at a time has it, and a dead one never."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwatch_server.storage.rows import StorageError, StorageFault
from gradwatch_server.storage.sqlite.lock import LOCK_NAME, DirectoryLock, StoreEnd, holder_in

HOLDER = """
import pathlib, sys, time
from gradwatch_server.storage.sqlite.lock import DirectoryLock

lock = DirectoryLock(pathlib.Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the directory."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_second_process_is_refused_with_the_pid_of_the_first(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(StorageError) as caught:
        DirectoryLock(tmp_path)

    assert caught.value.fault is StorageFault.LOCKED
    assert str(caught.value) == (
        f"the data directory {tmp_path} is in use by another aggregator "
        f"(pid {holder.pid}); stop it, or choose another directory with --data"
    )


@pytest.mark.slow
def test_the_directory_is_free_once_its_holder_was_killed(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    """The system lets go of the lock; the file that it leaves does not matter."""
    holder.send_signal(signal.SIGKILL)
    holder.wait()

    DirectoryLock(tmp_path).release()


def test_the_directory_is_free_once_it_is_released(tmp_path: Path) -> None:
    """The file is left, and says who had it last."""
    DirectoryLock(tmp_path / "new").release()
    DirectoryLock(tmp_path / "new").release()

    assert (tmp_path / "new" / LOCK_NAME).read_text() == f"{os.getpid()}\n"


def test_how_far_the_store_was_is_known_to_the_next_holder(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    assert lock.noted == StoreEnd()
    lock.note(StoreEnd(123_456, 789))
    lock.release()
    DirectoryLock(tmp_path).release()
    lock = DirectoryLock(tmp_path)
    assert lock.noted == StoreEnd(123_456, 789)
    lock.note(StoreEnd(7, 8))
    lock.release()

    text = (tmp_path / LOCK_NAME).read_text()
    assert text == f"{os.getpid()}\nlog 7 alerts 8\n"


def test_which_start_of_an_aggregator_has_it_is_noted(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, "0a1b")
    lock.note(StoreEnd(7, 8))
    assert holder_in((tmp_path / LOCK_NAME).read_bytes()) == (str(os.getpid()), "0a1b")
    lock.release()
    lock = DirectoryLock(tmp_path)
    assert lock.noted == StoreEnd(7, 8)
    assert holder_in((tmp_path / LOCK_NAME).read_bytes()) == (str(os.getpid()), "")
    lock.release()


@pytest.mark.parametrize("what", ["a file", "below a file", "a NUL", "read-only"])
def test_an_unusable_directory_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    directory = tmp_path / "data"
    if what == "a file":
        directory.write_text("")
    elif what == "below a file":
        (tmp_path / "file").write_text("")
        directory = tmp_path / "file" / "data"
    elif what == "a NUL":
        directory = tmp_path / "da\0ta"
    elif os.geteuid() == 0:
        directory = Path("/sys/gradwatch")  # where not even root may write
    else:
        directory.mkdir()
        directory.chmod(stat.S_IRUSR | stat.S_IXUSR)

    with pytest.raises(
        StorageError, match=r"^cannot use the data directory .*choose one with"
    ) as caught:
        DirectoryLock(directory)
    assert caught.value.fault is StorageFault.UNUSABLE
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "who"),
    [(0o775, "its group"), (0o777, "everybody"), (0o1777, "everybody"), (0o755, ""), (0o700, "")],
)
def test_a_directory_that_others_may_write_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, who: str
) -> None:
    """S44: once, with what helps; and it is used."""
    tmp_path.chmod(mode)
    DirectoryLock(tmp_path).release()

    told = [record.message for record in caplog.records]
    expected = (
        f"the data directory {tmp_path} may be written by {who} (mode {mode:04o}), who can replace "
        f"the data; chmod go-w {tmp_path}"
    )
    assert told == ([expected] if who else [])
