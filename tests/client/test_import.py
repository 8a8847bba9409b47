"""What `import gradwatch` brings along, what it says when something is missing, what it offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gradwatch

pytestmark = pytest.mark.slow

# Makes the modules named in the first argument impossible to import, as if not installed.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""

SERVER_PACKAGES = "numpy,fastapi,starlette,uvicorn,pydantic,typer,rich,httpx,gradwatch_server"


def run(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def test_it_works_without_anything_that_the_aggregator_needs() -> None:
    """Attached and collecting, in an environment that has only torch, pyzmq and msgpack."""
    result = run(
        WITHOUT
        + """
import warnings
warnings.simplefilter("ignore")  # torch misses numpy
import torch, gradwatch
model = torch.nn.Linear(2, 2)
watch = gradwatch.attach(model, run="test", endpoint="tcp://127.0.0.1:9")
model(torch.ones(1, 2)).sum().backward()
watch.collect(loss=1.0)
print(watch.stats()["collected"], watch.stats()["faults"])
import os
sys.stdout.flush()
os._exit(0)
""",
        SERVER_PACKAGES,
    )

    assert (result.returncode, result.stdout) == (0, "1 0\n"), result.stderr


def test_on_top_of_torch_it_imports_little() -> None:
    result = run(
        "import sys, torch; before = set(sys.modules); import gradwatch\n"
        "print(*sorted(n for n in set(sys.modules) - before if n.count('.') < 1))\n"
        "print(*sorted(n for n in set(sys.modules) - before if n.startswith('torch')))\n"
    )
    packages, of_torch = result.stdout.splitlines()

    assert set(packages.split()).isdisjoint(SERVER_PACKAGES.split(","))
    assert {"gradwatch", "gradwatch_wire", "msgpack", "zmq"} <= set(packages.split())
    heavy = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch._export")
    assert [name for name in of_torch.split() if name.startswith(heavy)] == []


def test_the_frameworks_are_imported_by_who_asks_for_them() -> None:
    """Not by `gradwatch`, and none by the callback of another."""
    result = run(
        "import sys, gradwatch\n"
        "print([n for n in sys.modules if n.startswith(('gradwatch.integrations', 'lightning',\n"
        "    'pytorch_lightning', 'transformers', 'accelerate'))])\n"
        "import gradwatch.integrations.lightning\n"
        "print('gradwatch.integrations.huggingface' in sys.modules)\n"
    )

    assert result.stdout.splitlines() == ["[]", "False"], result.stderr


@pytest.mark.exhaustive
def test_without_the_framework_a_callback_says_what_to_install() -> None:
    result = run(WITHOUT + "import gradwatch.integrations.lightning", "lightning,pytorch_lightning")

    assert result.returncode == 1
    assert result.stderr.endswith("needs Lightning; run: pip install lightning\n")


def test_without_torch_it_says_what_to_install() -> None:
    result = run(WITHOUT + "import gradwatch", "torch")

    assert result.returncode == 1
    assert result.stderr.endswith(
        "\nModuleNotFoundError: gradwatch needs PyTorch; run: pip install 'gradwatch[client]'\n"
    )
    assert "No module named" not in result.stderr


@pytest.mark.exhaustive
def test_another_missing_package_is_not_blamed_on_torch() -> None:
    """A broken installation shows what is missing."""
    result = run(WITHOUT + "import gradwatch", "msgpack")

    assert result.returncode == 1
    assert result.stderr.endswith("\nModuleNotFoundError: No module named 'msgpack'\n")
    assert "gradwatch[client]" not in result.stderr


def test_what_it_offers_is_listed() -> None:
    """`__all__` is complete: nothing public of ours is missing, nothing else is in."""
    ours = {
        name
        for name, value in vars(gradwatch).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("gradwatch")
    }

    thresholds = {name for name, value in vars(gradwatch).items() if isinstance(value, float)}
    modules = {"collector", "gain_monitor"}
    # An attribute once somebody has imported it.
    public = {name for name in dir(gradwatch) if not name.startswith("_")} - {"integrations"}

    assert set(gradwatch.__all__) == ours | thresholds | {"__version__"}
    assert public == ours | thresholds | modules


def test_it_is_typed() -> None:
    """Type checkers read the annotations only where this file is."""
    assert Path(gradwatch.__file__).with_name("py.typed").is_file()
