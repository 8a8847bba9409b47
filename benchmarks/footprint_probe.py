"""Run by `footprint.py` in a fresh interpreter: prints what each import adds, as JSON.

It imports nothing of its own before torch that torch or gradwatch would have to load.
"""

import json
import sys
import time

import psutil

SETTLE_S = 0.2


def measure(module: str) -> dict[str, float]:
    """Return the seconds that an import took, and the resident MB that it added."""
    before, began = psutil.Process().memory_info().rss, time.perf_counter()
    __import__(module)
    took = time.perf_counter() - began
    time.sleep(SETTLE_S)  # threads that it started have settled
    return {"s": took, "mb": (psutil.Process().memory_info().rss - before) / 1e6}


def main() -> None:
    """Measure torch, then what we add."""
    torch = measure("torch")
    loaded = set(sys.modules)
    gradwatch = measure("gradwatch")
    modules = len(set(sys.modules) - loaded)
    print(json.dumps({"torch": torch, "gradwatch": gradwatch, "modules": modules}))


if __name__ == "__main__":
    main()
