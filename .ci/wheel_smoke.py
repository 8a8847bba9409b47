"""Checks an unpacked wheel: everything is in it, and everything imports from it.

Usage: python -P wheel_smoke.py SITE ROOT, with PYTHONPATH=SITE, from an empty folder. SITE is where
the wheel was unpacked to, ROOT the checkout that it was built from.
"""

import importlib
import importlib.metadata
import pkgutil
import sys
from pathlib import Path

PACKAGES = {"gradwatch": "client", "gradwatch_server": "server", "gradwatch_wire": "shared"}


def files_under(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in paths if "__pycache__" not in path.parts}


def main() -> None:
    site, root = (Path(argument).resolve() for argument in sys.argv[1:])
    version = importlib.metadata.version("gradwatch")
    for name, source in PACKAGES.items():
        missing = files_under(root / source / name) - files_under(site / name)
        if missing:
            sys.exit(f"{name}: not in the wheel: {', '.join(sorted(missing))}")
        if not (site / name / "py.typed").is_file():
            sys.exit(f"{name}: no py.typed in the wheel")
        package = importlib.import_module(name)
        found = [module.name for module in pkgutil.walk_packages(package.__path__, f"{name}.")]
        inner = [module for module in found if not module.endswith("__main__")]
        modules = [package, *map(importlib.import_module, inner)]
        for module in modules:
            if module.__file__ is None or not Path(module.__file__).resolve().is_relative_to(site):
                sys.exit(f"{module.__name__}: came from {module.__file__}, not from the wheel")
        print(f"{name} {version}: {len(modules)} modules import from the wheel")


if __name__ == "__main__":
    main()
