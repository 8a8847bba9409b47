"""Steps of the Dockerfile without Docker: as its user, with a root that is read-only.

The base images are missing here. What is installed is what the Dockerfile says, and nothing else of
what the tests run with.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.machine import INSTALLED, REPOSITORY, as_user, run_in_machine

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
STAGES = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]


def instructions(stage: str, name: str) -> list[str]:
    """Return what stands behind an instruction of a stage, each on one line."""
    return re.findall(rf"^ *{name} +(.*)$", stage, re.MULTILINE)


def command(name: str) -> list[str]:
    """Return the last command of a kind in the last stage, which is in JSON."""
    found: list[str] = json.loads(instructions(STAGES[-1], name)[-1])
    return found


def test_base_images_have_tags_and_the_image_has_no_build_tools_of_its_own() -> None:
    images = [stage.split()[0] for stage in STAGES]

    assert all(re.fullmatch(r"[a-z]+:[\w.-]*\d[\w.-]*", image) for image in images), images
    assert instructions(STAGES[-1], "COPY") == [f"--from=build {INSTALLED} {INSTALLED}"]
    assert "pip" not in STAGES[-1].replace("pipefail", "")


def extras() -> list[str]:
    (install,) = instructions(STAGES[0], "RUN")
    (names,) = re.findall(r'"\.\[([a-z,]+)\]"', install)
    return str(names).split(",")


@pytest.mark.slow
def test_what_is_installed_is_what_an_operator_wants_and_no_torch() -> None:
    """Aggregator, notifications."""
    assert extras() == ["server", "notify"]
    assert {"fastapi", "zmq", "apprise"} <= files_of(extras())
    assert not {"torch", "pytest", "pyarrow"} & files_of(extras())


def test_everything_that_is_copied_is_let_into_the_build() -> None:
    let_in = {
        line.removeprefix("!")
        for line in (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    copied = {
        source
        for stage in STAGES
        for line in instructions(stage, "COPY")
        if not line.startswith("--from")
        for source in line.split()[:-1]
    }

    assert copied == let_in
    assert all((REPOSITORY / name).exists() for name in copied)


IMPORT_ALL = """
import importlib, pkgutil, gradwatch_server
for module in pkgutil.walk_packages(gradwatch_server.__path__, "gradwatch_server."):
    # The image is without the extras `postgres` and `mcp`.
    extras = ".postgres.", ".assistants.tools"
    if not module.name.endswith("__main__") and not any(own in module.name for own in extras):
        importlib.import_module(module.name)
"""


@pytest.mark.slow
def test_its_commands_run_as_its_user_with_a_root_that_is_read_only(tmp_path: Path) -> None:
    (number,) = {int(part) for part in instructions(STAGES[-1], "USER")[-1].split(":")}
    (build,) = instructions(STAGES[-1], "RUN")
    (volume,) = instructions(STAGES[-1], "VOLUME")
    serve = as_user(number, *command("ENTRYPOINT"), *command("CMD"))
    check = as_user(number, *json.loads(instructions(STAGES[-1], "HEALTHCHECK .* CMD")[-1]))
    script = f"""
        {build}
        owner=$(stat --format 'uid=%u,gid=%g,mode=%a' {volume})
        mount -t tmpfs -o "$owner" tmpfs {volume}  # a new volume is as the image's directory
        mount -o remount,ro /
        cd {shlex.quote(instructions(STAGES[-1], "WORKDIR")[-1])}
        ! {as_user(number, "touch", "/opt/x")} 2>/dev/null
        {as_user(number, "python", "-P", "-c", IMPORT_ALL)}
        {serve} >/tmp/log 2>&1 &
        until_ok {check} 2>/dev/null
        stat --format '%U %a %n' {volume}/gradwatch.db
        kill -TERM $!
        wait $!
        ! {check} 2>/tmp/check
        tail -n 1 /tmp/check
    """

    printed = run_in_machine(script, tmp_path, files_of(extras())).splitlines()

    assert printed[0] == f"gradwatch 600 {volume}/gradwatch.db"
    assert "Connection refused" in printed[-1]


def files_of(extras: Iterable[str]) -> set[str]:
    """Return the files and folders in site-packages that the project needs with some extras.

    Its own are not among them. What is missing here raises `PackageNotFoundError`.
    """
    waiting = [Requirement(f"gradwatch[{','.join(extras)}]")]
    seen: set[str] = set()
    found: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        one = distribution(wanted.name)
        for line in one.requires or ():
            needed = Requirement(line)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)
            ):
                needed.marker = None
                waiting.append(needed)
        if wanted.name != "gradwatch":
            found |= {file.parts[0] for file in one.files or ()}
    return {name for name in found if name not in ("..", "__pycache__")}
