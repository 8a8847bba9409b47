"""Installs a wheel into clean environments, with each extra alone, and uses it there.

For each Python of 3.11 to 3.13 that is found. What torch is taken, requirements.lock says; all else
is what pip chooses, as it does for who installs it.

Usage: environments.py WHEEL
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PYTHONS: Final = ("3.11", "3.12", "3.13")

IMPORTS: Final = {
    "postgres": "alembic, psycopg",
    "mcp": "mcp",
    "notify": "apprise",
    "parquet": "pyarrow.parquet",
    "tensorboard": "tensorboardX",
}
"""Extra to what it has to bring."""

TRAIN: Final = """
import gradwatch, torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = gradwatch.attach(model, optimizer, run="environment", endpoint="tcp://127.0.0.1:1")
for _ in range(3):
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
watch.close()
assert watch.stats()["collected"] == 3, watch.stats()
print(f"torch {torch.__version__}: 3 steps were watched")
"""

SERVE: Final = """
import httpx, re, subprocess, sys
command = [sys.executable, "-m", "gradwatch_server"]
ports = ["--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0", "--data", "data"]
subprocess.run([*command, "doctor", *ports], check=True, stdout=subprocess.DEVNULL)
with subprocess.Popen([*command, "serve", *ports], stdout=subprocess.PIPE, text=True) as served:
    line = next(line for line in served.stdout if line.startswith("  http "))
    answer = httpx.get(line.split()[1] + "/healthz", trust_env=False).raise_for_status().json()
    page = httpx.get(line.split()[1], trust_env=False).raise_for_status().text
    static = re.search(r"/static/[^/]+", page)[0]
    lines = httpx.get(f"{line.split()[1]}{static}/vendor/uplot/uPlot.esm.js", trust_env=False)
    served.terminate()
assert lines.is_success, lines
print(f"serve answers: version {answer['version']}, Python {sys.version.split()[0]}")
"""


class Environment:
    """A virtual environment with one extra of a wheel.

    Args:
        python: The interpreter to make it with.
        folder: Where it is made.
    """

    def __init__(self, python: str, folder: Path) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        self._bin = folder / "venv/bin"
        # Nothing of this checkout, of its settings or of an aggregator that runs here.
        self._environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GRADWATCH_", "PYTHON"))
        }

    def install(self, wheel: Path, extra: str) -> None:
        """Install the wheel with an extra, or without one."""
        constraints = self.folder / "constraints"
        lock = (ROOT / "requirements.lock").read_text().splitlines()
        constraints.write_text("\n".join(line for line in lock if line.startswith("torch==")))
        what = f"{wheel}[{extra}]" if extra else str(wheel)
        quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")
        self.run("python", "-m", "pip", "install", *quiet, "--constraint", str(constraints), what)

    def run(self, program: str, *arguments: str, code: int = 0) -> str:
        """Run a program of it; return what it printed, errors included.

        Raises:
            SystemExit: If it does not exit with *code*.
        """
        done = subprocess.run(
            [self._bin / program, *arguments],
            cwd=self.folder,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != code or ("Traceback" in done.stdout and code == 0):
            asked = " ".join((program, *arguments))[:200]
            sys.exit(f"{asked}\nexit code {done.returncode}, not {code}:\n{done.stdout}")
        return done.stdout


def find_python(version: str) -> str | None:
    """Return an interpreter of a version that can make environments; pyenv's, too."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    test = f"import ensurepip, venv, sys; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for candidate in candidates:
        if candidate is not None:
            done = subprocess.run([candidate, "-c", test], capture_output=True, check=False)
            if done.returncode == 0:
                return str(candidate)
    return None


def use(environment: Environment, extra: str) -> str:
    """Use what an extra brings; return a line about it."""
    assert_says(environment.run("gradwatch", "--version"), "gradwatch ")
    environment.run("gradwatch", "--help")
    if extra != "client":
        needs = environment.run("python", "-c", "import gradwatch", code=1)
        assert_says(needs, "gradwatch needs PyTorch; run: pip install 'gradwatch[client]'")
    if extra == "server":
        return environment.run("python", "-c", SERVE)
    needs = environment.run("gradwatch", "runs", code=1)
    assert_says(needs, "run: pip install 'gradwatch[server]'")
    assert_says(environment.run("gradwatch", "doctor", "--json", code=1), '"endpoint"')
    if extra == "client":
        return environment.run("python", "-c", TRAIN)
    if extra:
        environment.run("python", "-c", f"import {IMPORTS[extra]}")
    return "the command says what it needs"


def assert_says(text: str, wanted: str) -> None:
    """Exit if a text does not say what it has to."""
    if wanted not in text:
        sys.exit(f"{wanted!r} is not in:\n{text}")


def environments() -> Iterator[tuple[str, str]]:
    """Yield version and interpreter of each Python there is; say which are not there."""
    for version in PYTHONS:
        python = find_python(version)
        if python is None:
            print(f"Python {version}: not here, so nothing was installed into it")
        else:
            yield version, python


def main() -> None:
    """Try all of them; exit with the first that fails."""
    wheel = Path(sys.argv[1]).resolve()
    for version, python in environments():
        for extra in ("", "server", "client", *IMPORTS):
            began_s = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="gradwatch-environment-") as folder:
                environment = Environment(python, Path(folder))
                environment.install(wheel, extra)
                said = use(environment, extra).strip().splitlines()[-1]
            name = f"gradwatch[{extra}]" if extra else "gradwatch"
            print(
                f"Python {version}, {name}: {said} ({time.monotonic() - began_s:.0f} s)", flush=True
            )


if __name__ == "__main__":
    main()
