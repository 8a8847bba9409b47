"""Gradient telemetry for PyTorch: which layer on which rank went wrong at which step.

Typical use::

    import gradwatch

    watch = gradwatch.attach(model, optimizer, run="gpt2-small")
    for batch in loader:
        loss = model(batch)
        loss.backward()
        watch.collect(loss=loss)  # optional: the point before clipping
        optimizer.step()
    watch.close()

Training never waits: nothing here synchronises with the device, blocks on the network, or raises
once `attach` has returned.
"""

try:
    from gradwatch._attach import attach
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "gradwatch needs PyTorch; run: pip install 'gradwatch[client]'", name="torch"
    ) from None
from gradwatch._null import NullWatch
from gradwatch._watch import Watch
from gradwatch_wire.version import __version__

__all__ = ["NullWatch", "Watch", "__version__", "attach"]
