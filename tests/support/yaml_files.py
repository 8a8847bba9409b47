"""What stands in a YAML file."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own


def documents(text: str) -> list[Any]:
    """Return the documents of a text, read as Kubernetes does: by YAML 1.1, where 0400 is octal."""
    return list(yaml.safe_load_all(text))
