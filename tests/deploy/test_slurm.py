"""docs/examples/train.sbatch, run by Slurm itself: a controller and two nodes, all here."""

from __future__ import annotations

import re

import pytest

from tests.support.machine import REPOSITORY, run_in_machine
from tests.support.programs import program

pytestmark = pytest.mark.slow

SCRIPT = "docs/examples/train.sbatch"

CLUSTER = r"""
    printf '127.0.0.1 localhost\n192.0.2.1 controller n1 n2\n' >/etc/hosts
    hostname controller
    install --directory --owner munge --mode 0755 /run/munge
    install --directory --owner munge --mode 0700 /etc/munge /var/lib/munge /var/log/munge
    head --bytes 1024 /dev/urandom >/etc/munge/munge.key
    chown munge /etc/munge/munge.key
    chmod 0400 /etc/munge/munge.key
    mkdir -p /etc/slurm
    cat >/etc/slurm/slurm.conf <<END
ClusterName=test
SlurmctldHost=controller
SlurmUser=root
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
NodeName=n[1-2] NodeHostname=controller Port=[17001-17002]
PartitionName=all Nodes=ALL Default=YES
END
    mkdir -p /var/spool/slurmctld /var/spool/slurmd-n1 /var/spool/slurmd-n2
    setpriv --reuid munge --regid munge --clear-groups munged --foreground >/tmp/log 2>&1 &
    until_ok test -S /run/munge/munge.socket.2
    slurmctld -D >>/tmp/log 2>&1 &
    for node in n1 n2; do slurmd -D -N $node >>/tmp/log 2>&1 & done
    idle() { [[ $(sinfo --noheader --format '%D %T' 2>/dev/null) == '2 idle' ]]; }
    until_ok idle
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    for name, package in {
        "munged": "munge",
        "sbatch": "slurm-client",
        "slurmctld": "slurmctld",
        "slurmd": "slurmd",
    }.items():
        program(name, package)
    script = f"""
        {CLUSTER}
        export HOME=/home/somebody OMP_NUM_THREADS=1
        mkdir $HOME
        cd $HOME
        submit() {{
            sbatch --quiet --wait --output job.txt /opt/gradwatch/source/{SCRIPT} \\
                /opt/gradwatch/source/client/gradwatch/demo.py "$@"
        }}
        status=0
        submit --steps 8 --poison-step 7 || status=$?
        cat job.txt
        echo "ended with $status"
        stat --format '%a %n' gradwatch-keys/client.key
        ls /tmp
        gradwatch serve --data gradwatch-results/1 >/tmp/log 2>&1 &
        until_ok gradwatch runs 2>/dev/null
        export GRADWATCH_ENDPOINT=tcp://127.0.0.1:5555 GRADWATCH_URL=http://127.0.0.1:8420
        submit --steps 4 >/dev/null
        gradwatch runs
    """
    return run_in_machine(script, tmp_path_factory.mktemp("slurm"))


def test_the_job_says_how_its_training_was(printed: str) -> None:
    assert re.search(r"^ended with 3$", printed, re.MULTILINE), printed
    assert re.search(r"^step +7 ", printed, re.MULTILINE)
    assert re.search(r"NaN .*rank\s+1", printed, re.DOTALL)


def test_what_it_recorded_is_kept_where_it_was_submitted(printed: str) -> None:
    kept = printed.split("ended with")[1]

    assert "600 gradwatch-keys/client.key" in kept
    assert "tmp." not in kept
    assert re.search(r"train-1 +ended +critical +7 +2/2 ", kept), kept


def test_a_standing_aggregator_has_the_job_too(printed: str) -> None:
    """The job starts none of its own, and ends well."""
    assert re.search(r"train-2 +ended +\w+ +3 +2/2 ", printed), printed


def test_the_script_is_a_job_of_bash() -> None:
    """Slurm reads its options above the first command only."""
    text = (REPOSITORY / SCRIPT).read_text("utf-8")
    options, commands = text.split("set -euo pipefail\n", 1)

    assert text.startswith("#!/usr/bin/env bash\n")
    assert "#SBATCH --nodes=2" in options
    assert "#SBATCH" not in commands
