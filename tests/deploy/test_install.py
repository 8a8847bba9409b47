"""Installation without a checkout and without Node.js: `pip install` of a Git address."""

from __future__ import annotations

import functools
import io
import os
import subprocess
import sys
import sysconfig
import tarfile
import threading
import venv
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.support.machine import REPOSITORY
from tests.support.waiting import PATIENCE_S

UPLOT = REPOSITORY / "server/gradwatch_server/page/static/vendor/uplot"
FILES = {
    "dist/uPlot.esm.js": "uPlot.esm.js",
    "dist/uPlot.min.css": "uPlot.min.css",
    "LICENSE": "LICENSE.txt",
}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder and the address of a registry of packages, on this machine."""
    if not (UPLOT / "uPlot.esm.js").is_file():
        pytest.skip("uPlot is not here: scripts/vendor gets it")
    folder = tmp_path_factory.mktemp("registry")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def publish(folder: Path, **changed: bytes) -> Path:
    """Put uPlot's package into a registry, some of its files with another content."""
    target = folder / "uplot" / "-" / "uplot-1.6.32.tgz"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as archive:
        for path, name in FILES.items():
            content = changed.get(path, (UPLOT / name).read_bytes())
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target


def vendor(checkout: Path, registry: str) -> tuple[int, str, set[str]]:
    """Run `vendored/vendor.py` of a checkout; return exit code, errors, and the page's files."""
    script = checkout / "vendored" / "vendor.py"
    script.parent.mkdir(exist_ok=True)
    script.write_bytes((REPOSITORY / "vendored" / "vendor.py").read_bytes())
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"npm_config_registry": registry},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr, {path.name for path in checkout.rglob("uplot/*")}


def test_lines_are_taken_as_they_were_and_not_otherwise(
    registry: tuple[Path, str], tmp_path: Path
) -> None:
    folder, address = registry
    publish(folder, LICENSE=b"another one")
    code, errors, files = vendor(tmp_path, address)
    assert (code, files) == (1, set())
    assert "LICENSE of uPlot is not the file that it was" in errors

    publish(folder)
    assert vendor(tmp_path, address) == (0, "", set(FILES.values()))
    assert vendor(tmp_path, "http://127.0.0.1:1")[0] == 0  # they are there


@pytest.mark.parametrize("content", [None, b"no archive", b"\x1f\x8b\x08\x00", b""])
def test_lines_that_cannot_be_had_are_told_in_one_line(
    registry: tuple[Path, str], tmp_path: Path, content: bytes | None
) -> None:
    folder, address = registry
    package = publish(folder)
    if content is None:
        package.unlink()
    else:
        package.write_bytes(content)

    code, errors, files = vendor(tmp_path, address)

    assert (code, files) == (1, set())
    assert errors.startswith("vendored/vendor.py: lines are missing from the page: http://")
    assert errors.count("\n") == 1


@pytest.fixture(scope="module")
def programs(registry: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an empty environment without torch, after `pip install` of a Git address."""
    folder, address = registry
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is no checkout of Git")
    publish(folder)
    root = tmp_path_factory.mktemp("stranger")
    venv.create(root / "venv", symlinks=True)
    libraries = root / "libraries"
    libraries.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("torch", "gradwatch", "mcp", "_", "pip")):
            (libraries / path.name).symlink_to(path)
    site = next((root / "venv" / "lib").glob("python*/site-packages"))
    (site / "libraries.pth").write_text(f"{libraries}\n")
    python = root / "venv" / "bin" / "python"
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            *options,
            f"git+{REPOSITORY.as_uri()}",
        ],
        cwd=root,
        env=os.environ | {"npm_config_registry": address, "PYTHONPATH": ""},
        check=True,
        timeout=4 * PATIENCE_S,
    )
    return python.parent


def run(programs: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs / name, *arguments],
        cwd=programs.parent,
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.mark.slow
def test_the_page_is_installed_with_its_lines(programs: Path) -> None:
    code = "import gradwatch_server as own; print(own.__path__[0])"
    (package,) = run(programs, "python", "-c", code).stdout.split()

    assert Path(package).is_relative_to(programs.parent)
    for name in FILES.values():
        content = Path(package, "page/static/vendor/uplot", name).read_bytes()
        assert content == (UPLOT / name).read_bytes()


@pytest.mark.slow
def test_assistants_are_told_what_is_not_installed(programs: Path, tmp_path: Path) -> None:
    """Without the extra `mcp` the answer is a problem document, and the service goes on."""
    addresses = ("--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0", "--data", str(tmp_path))
    command = [str(programs / "gradwatch"), "serve", *addresses]
    environ = os.environ | {"PYTHONPATH": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as served:
        line = next(line for line in served.stdout or () if line.startswith("  http "))
        url = line.split()[1]
        answers = [httpx.post(f"{url}/mcp", json={}, trust_env=False) for _ in range(2)]
        is_ready = httpx.get(f"{url}/readyz", trust_env=False).is_success
        served.terminate()

    assert [answer.status_code for answer in answers] == [501, 501]
    assert "pip install 'gradwatch[mcp]'" in answers[0].json()["detail"]
    assert is_ready
    assert served.returncode == 0


@pytest.mark.slow
def test_the_demo_says_that_torch_is_missing(programs: Path) -> None:
    done = run(programs, "gradwatch", "demo")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "gradwatch: the demo trains with torch, which is missing; "
        "run: pip install 'gradwatch[client]'\n"
    )
