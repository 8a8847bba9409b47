"""Run name, rank and world size, from arguments, settings and launchers."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from gradwatch._watch.identity import Identity, find_identity, find_rank, is_disabled

MEETING = {"MASTER_ADDR": "node-3", "MASTER_PORT": "29500"}
OF_TWO = {"RANK": "1", "WORLD_SIZE": "2"}


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set environment variables: `environ(RANK=1)`."""

    def set_all(**variables: object) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return set_all


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("", False), ("0", False), ("false", False), ("No", False), ("FALSE", False)),
        *(("1", True), ("true", True), ("yes", True), ("anything", True)),
    ],
)
def test_gradwatch_disabled_switches_it_off(environ: Any, value: str, expected: bool) -> None:
    assert not is_disabled()
    environ(GRADWATCH_DISABLED=value)

    assert is_disabled() is expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        # torchrun inside a Slurm job: the inner launcher knows.
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (1, 2)),
        # Half of a pair says nothing.
        ({"RANK": "3"}, (0, 1)),
        ({"WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"RANK": " 1 ", "WORLD_SIZE": "65536"}, (1, 65536)),
    ],
)
def test_rank_and_world_come_from_the_launcher(
    variables: dict[str, str], expected: tuple[int, int]
) -> None:
    """The first launcher whose both variables are there; without one, 0 of 1."""
    assert find_rank(variables) == expected


@pytest.mark.parametrize(
    ("rank", "world", "message"),
    [
        ("x", "2", "rank: RANK='x' WORLD_SIZE='2' in the environment are not whole numbers"),
        ("", "2", "rank: RANK='' WORLD_SIZE='2'"),
        ("1.0", "2", "not whole numbers"),
        ("2", "2", "rank: RANK='2' WORLD_SIZE='2' in the environment; need 0 <= rank < world"),
        ("-1", "2", "need 0 <= rank < world <= 65536"),
        ("0", "0", "need 0 <= rank < world"),
        ("0", "65537", "need 0 <= rank < world <= 65536"),
    ],
)
def test_a_rank_that_cannot_be_is_an_error(rank: str, world: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_rank({"RANK": rank, "WORLD_SIZE": world})


@pytest.mark.slow
def test_torch_distributed_knows_better_than_the_environment(
    environ: Any, one_process: None
) -> None:
    """Stale variables of an outer launcher do not count once the group is there."""
    environ(RANK=5, WORLD_SIZE=8)

    assert find_rank() == (0, 1)


@pytest.mark.parametrize(
    ("argument", "variables", "expected"),
    [
        ("mine", {}, Identity("mine", 0, 1, "")),
        ("mine", {"GRADWATCH_RUN": "other", "SLURM_JOB_ID": "7"}, Identity("mine", 0, 1, "7/")),
        (None, {"GRADWATCH_RUN": "other"}, Identity("other", 0, 1, "")),
        ("", {"GRADWATCH_RUN": "other"}, Identity("other", 0, 1, "")),
        (None, {"GRADWATCH_RUN": "a", "SLURM_JOB_ID": "7"}, Identity("a", 0, 1, "7/")),
        (None, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}, Identity("7", 0, 1, "7/2")),
        (
            None,
            {"TORCHELASTIC_RUN_ID": "e1", "SLURM_JOB_ID": "7", "RANK": "1", "WORLD_SIZE": "2"},
            Identity("e1", 1, 2, "e1/"),
        ),
        (
            None,
            {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7", "TORCHELASTIC_RESTART_COUNT": "0"},
            Identity("7", 0, 1, "7/0"),
        ),
        # torchrun's own default is no id: then where the ranks meet is what tells jobs apart.
        (
            "mine",
            {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"} | MEETING | OF_TWO,
            Identity("mine", 1, 2, "/1/node-3:29500"),
        ),
        ("mine", MEETING | OF_TWO, Identity("mine", 1, 2, "//node-3:29500")),
        ("mine", {"SLURM_JOB_ID": "7"} | MEETING | OF_TWO, Identity("mine", 1, 2, "7/")),
        ("mine", {"MASTER_PORT": "29500"} | OF_TWO, Identity("mine", 1, 2, "")),
        ("mine", MEETING, Identity("mine", 0, 1, "")),  # one process: each attach is an attempt
        (None, {"PBS_JOBID": "12[4].node"}, Identity("12-4-.node", 0, 1, "12[4].node/")),
        (None, {"LSB_JOBID": "..a b"}, Identity("a-b", 0, 1, "..a b/")),
        (None, {"LSB_JOBID": "j" * 300}, Identity("j" * 128, 0, 1, "j" * 300 + "/")),
    ],
)
def test_the_run_is_named_by_argument_setting_or_job(
    environ: Any, argument: str | None, variables: dict[str, str], expected: Identity
) -> None:
    environ(**variables)

    assert find_identity(argument) == expected


def test_a_single_process_without_a_name_gets_one_of_its_own(environ: Any) -> None:
    """The time and the process id make it readable and its own."""
    name = find_identity(None).run

    assert re.fullmatch(rf"run-\d{{8}}-\d{{6}}-{os.getpid()}", name)


def test_several_processes_without_a_name_are_asked_for_one(environ: Any) -> None:
    environ(RANK=0, WORLD_SIZE=4)

    with pytest.raises(ValueError, match=r"run: a name is needed, the same on all 4 ranks; pass"):
        find_identity(None)


@pytest.mark.parametrize("name", ["a b", "-a", ".a", "a/b", "a" * 129, "ä", "a\n", "../x"])
def test_a_name_that_does_not_fit_a_url_or_a_file_is_refused(environ: Any, name: str) -> None:
    with pytest.raises(ValueError, match=r"^run: '.*' is not a run name; allowed are 1 to 128"):
        find_identity(name)
    environ(GRADWATCH_RUN=name)
    with pytest.raises(ValueError, match=r"^run: "):
        find_identity(None)


@pytest.mark.parametrize("name", [5, b"a", ["a"], 0])
def test_a_name_that_is_no_string_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match=r"run: a string, got (int|bytes|list)"):
        find_identity(name)
