"""`gradwatch keys`."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import Command, error


def test_keys_are_made_and_their_use_is_printed(invoke: Command, tmp_path: Path) -> None:
    made = invoke("keys", "--dir", "keys")
    files = sorted(path.name for path in (tmp_path / "keys").iterdir() if path.is_file())

    assert made.returncode == 0
    assert all(name in made.stdout for name in files)
    assert "gradwatch serve --keys-dir keys" in made.stdout
    assert "tokens.toml" in files


def test_a_client_gets_a_key_of_its_own_and_a_run_without_one_is_refused(
    invoke: Command, tmp_path: Path
) -> None:
    invoke("keys", "--dir", "keys")
    added = invoke("keys", "--dir", "keys", "--client", "lab", "--run", "lab-*")

    assert added.returncode == 0
    assert [Path(line).exists() for line in added.stdout.split()] == [True]
    assert (
        error(invoke("keys", "--run", "lab-*"))
        == "--run is for a client; name it with --client NAME"
    )
