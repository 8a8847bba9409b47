"""What a PyTorch image lacks: pyzmq and msgpack, from wheels that were carried along."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

NEEDED: Final = ("torch", "zmq", "msgpack")

HOW: Final = """\
gpu_session: {missing} cannot be imported. Where there is a network, for the GPU machine's Python:

    pip download --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 \\
        --python-version 3.11 --dest wheels pyzmq msgpack

Carry the folder `wheels` along with the checkout; it is unpacked when the session begins
(--wheels DIR if it is elsewhere). torch and triton come with the image."""


def missing() -> list[str]:
    """Return the names of what cannot be imported."""
    return [name for name in NEEDED if find_spec(name) is None]


def unpack(folder: Path, site: Path) -> list[str]:
    """Unpack all wheels in a folder; return what has to stand in PYTHONPATH for them."""
    wheels = sorted(folder.glob("*.whl"))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return [str(site)] if wheels else []
