"""docker-compose.yml: valid, confined, on loopback, and its aggregator's command serves.

No Docker runs here; `docker compose` itself never saw the file.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.aggregator import Aggregator
from tests.support.machine import REPOSITORY
from tests.support.programs import program
from tests.support.yaml_files import documents

FILE = REPOSITORY / "docker-compose.yml"
(COMPOSE,) = documents(FILE.read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


@pytest.mark.slow
def test_the_file_is_valid() -> None:
    pytest.importorskip("check_jsonschema", reason="pip install --group readers")
    schema = ("--builtin-schema", "vendor.compose-spec")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *schema, FILE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_profile_there_is_the_aggregator_alone() -> None:
    """The others are of `--profile monitoring`."""
    profiles = {name: each.get("profiles") for name, each in SERVICES.items()}

    assert profiles.pop("aggregator") is None
    assert set(profiles) == {"prometheus", "alertmanager", "grafana"}
    assert all(each == ["monitoring"] for each in profiles.values())


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_confined_and_on_loopback(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in service["ports"])
    assert "build" in service or re.search(r":v?\d+\.\d+\.\d+$", service["image"])
    secret = re.compile("PASSWORD|SECRET|TOKEN", re.IGNORECASE)
    assert not any(secret.search(key) for key in service.get("environment", {}))


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_there_and_readable_for_other_users(name: str) -> None:
    """The containers' users are not the one who cloned the repository."""
    sources = [Path(volume.split(":")[0]) for volume in SERVICES[name]["volumes"]]
    mounted = [FILE.parent / source for source in sources if source.parts[0] == "deploy"]
    named = {str(source) for source in sources if source.parts[0] != "deploy"}

    assert named <= set(COMPOSE["volumes"])
    assert all(volume.endswith(":ro") for volume in SERVICES[name]["volumes"] if "./" in volume)
    for folder in mounted:
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert files, folder
        assert all(path.stat().st_mode & 0o004 for path in files)


@pytest.fixture(scope="module")
def aggregator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aggregator]:
    service = SERVICES["aggregator"]
    kept = [each for each in service["command"] if not re.match("--(http|ingest|data)=", each)]
    made = Aggregator(tmp_path_factory.mktemp("compose") / "data", *kept, **service["environment"])
    made.start()
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize(("host", "status"), [("aggregator:8420", 200), ("elsewhere:8420", 421)])
def test_prometheus_is_answered_under_the_name_of_the_service(
    aggregator: Aggregator, host: str, status: int
) -> None:
    answer = aggregator.get("/metrics", headers={"Host": host})

    assert answer.status_code == status
    assert status != httpx.codes.OK or "gradwatch_" in answer.text


def test_alertmanager_reads_its_file() -> None:
    """Judged by its own amtool."""
    amtool = program("amtool", "prometheus-alertmanager")
    path = REPOSITORY / "deploy" / "alertmanager" / "alertmanager.yml"
    done = subprocess.run(
        [amtool, "check-config", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
