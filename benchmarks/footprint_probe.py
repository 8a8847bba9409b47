"""Run by `footprint.py` in a fresh interpreter: prints what each import and a watch add, as JSON.

It imports nothing of its own before torch that torch or gradwatch would have to load.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

STEPS = 20
SETTLE_S = 0.2


def measure(action: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result, the seconds it took, and the resident MB it added."""
    before, began = psutil.Process().memory_info().rss, time.perf_counter()
    result = action()
    took = time.perf_counter() - began
    time.sleep(SETTLE_S)  # threads that it started have settled
    return result, {"s": took, "mb": (psutil.Process().memory_info().rss - before) / 1e6}


def main(endpoint: str) -> None:
    """Measure torch, then what we add."""
    torch, of_torch = measure(lambda: __import__("torch"))
    loaded = set(sys.modules)
    gradwatch, of_import = measure(lambda: __import__("gradwatch"))
    modules = len(set(sys.modules) - loaded)

    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(150)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(8, 256)

    def train() -> None:
        for _ in range(STEPS):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    train()
    _, unwatched = measure(train)
    watch, of_attach = measure(
        lambda: gradwatch.attach(model, optimizer, run="bench-footprint", endpoint=endpoint)
    )
    threads = sum(thread.name.startswith("gradwatch") for thread in threading.enumerate())
    _, watched = measure(train)
    watch.close()
    answer = {
        "torch": of_torch,
        "import": of_import,
        "attach": of_attach,
        "unwatched": unwatched,
        "watched": watched,
        "modules": modules,
        "threads": threads,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
