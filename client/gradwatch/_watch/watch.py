"""The watch: the object that the training script holds. Its calls enqueue work and return."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from torch import Tensor

from gradwatch._faults import Faults, tell
from gradwatch._hooks.training_hooks import TrainingHooks
from gradwatch._recording.recorder import Recorder
from gradwatch._transport.sender import JOIN_S, Sender
from gradwatch._watch import lifecycle
from gradwatch._watch.arguments import checked_batch, checked_loss, checked_size, checked_step
from gradwatch._watch.identity import Identity
from gradwatch._watch.null import NullWatch
from gradwatch_wire.names import Scalar
from gradwatch_wire.run_page import run_page

T = TypeVar("T")

_BOUND: Final = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):([0-9]{1,5})")


class Watch:
    """Made by `gradwatch.attach`. A context manager; also closed at exit."""

    def __init__(
        self,
        recorder: Recorder,
        hooks: TrainingHooks,
        sender: Sender,
        faults: Faults,
        identity: Identity,
    ) -> None:
        self._recorder = recorder
        self._hooks = hooks
        self._sender = sender
        self._faults = faults
        self._identity = identity
        self._pid = os.getpid()
        self._closed = False
        lifecycle.end_at_exit(self, lifecycle.Ending(self._begin_end, self._finish_end))

    @property
    def run(self) -> str:
        """Name of the run, also where it was generated."""
        return self._identity.run

    @property
    def url(self) -> str | None:
        """URL of the run's page, for a browser; None until the aggregator has answered.

        Also None where that cannot be known: the aggregator answers HTTP on the loopback address of
        another machine, or is too old to say where.
        """
        base = self.http_url
        return None if base is None else run_page(base, self.run)

    @property
    def http_url(self) -> str | None:
        """URL of the aggregator, such as `http://127.0.0.1:8420`; None where `url` is None."""
        return find_http_url(self._sender.session.http, self.endpoint)

    @property
    def endpoint(self) -> str:
        """Endpoint that records go to: of several endpoints the one that is in use now."""
        return self._sender.route.endpoint

    def collect(
        self,
        *,
        loss: Tensor | float | None = None,
        step: int | None = None,
        batch_size: int | None = None,
        micro_batch: bool = False,
    ) -> None:
        """Add the loss to the step that is under way, and measure what was changed by hand.

        Backward passes are measured without it. Call it between the last of them and the
        optimizer's step; where gradients were changed since (a hand-made all-reduce) they are
        measured anew. With an optimizer a call is no step; without one each is. On a GPU call it
        under the stream under which `backward` was called. A wrong argument is logged once and
        left out.

        Args:
            loss: This rank's own loss, a number or a one-element tensor on any device. A NaN in it
                names the rank that a NaN gradient came from.
            step: Number of this step, if it is not the count from 0.
            batch_size: Samples in the batch of this rank, by which its loss is weighted.
            micro_batch: With gradient accumulation: this is after one micro-batch, and more come
                in this step. Losses of micro-batches are averaged. Needed only where `collect`
                is called for each, or no optimizer was given.
        """
        if self._closed:
            return
        self._recorder.read_graph(loss)
        self._recorder.collect(
            self._valid(checked_step, step),
            lambda: {
                Scalar.LOSS: self._valid(checked_loss, loss),
                Scalar.BATCH_SIZE: self._valid(checked_size, batch_size),
            },
            micro_batch=micro_batch,
        )

    def annotate(
        self,
        *,
        loss: Tensor | float | None = None,
        step: int | None = None,
        batch: int | str | Iterable[int | str] | None = None,
    ) -> None:
        """Give what is known of the step under way, without measuring anything.

        But where the loss, on the CPU, is NaN or Inf and the budget left the step out, it is
        measured here. Call it between the end of a backward pass and the optimizer's step. A wrong
        argument is logged once and left out.

        Args:
            loss: This rank's own loss, a number or a one-element tensor on any device. With several
                calls in one step the record has their mean.
            step: Number of this step, if it is not the count from `first_step`.
            batch: What the batch of this step is, such as the indices of its samples: a bad step's
                alert has it. Integers or strings, of which 256 bytes are kept. It may be given
                anywhere in the step; of several calls in one step all are kept.
        """
        if self._closed:
            return
        number = self._valid(checked_step, step)
        if text := self._valid(checked_batch, batch):
            at = self._recorder.step if number is None else number
            self._recorder.history.note_batch(at, text)
        if loss is None and step is None:
            return
        self._recorder.annotate(number, self._valid(checked_loss, loss))

    def is_bad(self, *, wait: bool = False) -> bool | None:
        """Tell whether a gradient of the step under way is NaN or Inf.

        Call it between `backward()` and the optimizer's step. It measures nothing: a step that the
        budget leaves out is not known, so attach with `every=1` to know each. With several ranks
        the answer may differ from rank to rank, and only a step that all of them skip is skipped.

        Args:
            wait: Whether to wait for an accelerator: what it has measured is not known without.

        Returns:
            None if the step was not looked at, or not as a whole.
        """
        return None if self._closed else self._recorder.is_bad(wait=wait)

    def drop_step(self) -> None:
        """Note that the step under way will change no weight, as its gradients were dropped.

        Its record then says that it was not taken, also where the optimizer is called.
        """
        if not self._closed:
            self._recorder.windows.drop_step()

    def close(self) -> None:
        """Remove the hooks, send what is left and BYE, in 2.5 s whatever the aggregator does.

        Records that are not acknowledged by then are lost.
        """
        self._end(lifecycle.end_reason())

    def stats(self) -> dict[str, int | str]:
        """Return counters of this watch.

        They are the `pace`: how often is measured, and what that takes of the training's time;
        steps `collected`; the newest `bad_step`, in which a gradient was NaN or Inf, -1 before one
        is known; collections `dropped` because the device or the sender did not
        keep up; records `oversize` for the aggregator, `sent`, `acked`, `evicted` from memory
        before they were acknowledged, `pending`; with spill files also records `spilled` to disk,
        `spill_dropped` from there before they were acknowledged, `replayed` from those of an
        earlier process; `moves` from one endpoint to the next, and the `endpoint` in use; `faults`
        and the `last_error`. What is dropped, oversize, or evicted and
        not spilled, the aggregator counts as lost.
        """
        counters = self._sender.session.counters
        spill, orphaned = self._sender.spill, self._sender.orphaned
        return {
            "pace": self._recorder.pace,
            "collected": self._recorder.num_collected,
            "bad_step": self._recorder.reports.seen_steps.bad,
            "dropped": self._sender.queue.num_dropped,
            "oversize": counters["oversize"],
            "sent": counters["sent"],
            "acked": counters["acked"],
            "evicted": counters["evicted"],
            "pending": self._sender.session.source.pending + len(self._sender.queue),
            "spilled": spill.num_written if spill else 0,
            "spill_dropped": spill.num_dropped if spill else 0,
            "replayed": orphaned.num_sent if orphaned else 0,
            "moves": self._sender.route.num_moves,
            "endpoint": self.endpoint,
            "faults": self._faults.counts.total(),
            "last_error": self._faults.last,
        }

    def __repr__(self) -> str:
        """Say which run and rank it is, where it sends to, and how far it is."""
        state = ", closed" if self._closed else ""
        return (
            f"<gradwatch.Watch run={self.run!r} rank={self._identity.rank} of "
            f"{self._identity.world} endpoint={self.endpoint!r} step={self._recorder.step} "
            f"collected={self._recorder.num_collected}{state}>"
        )

    def __reduce__(self) -> tuple[type[NullWatch], tuple[()]]:
        """Copy and pickle as a watch that does nothing: what is copied is the user's model."""
        return NullWatch, ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, and say whether an exception ended the training."""
        left = kind is None or issubclass(kind, SystemExit)
        self._end("closed" if left else "exception")

    def disable(self) -> None:
        """Do nothing from here on: this process is a fork of the one that trains."""
        self._closed = True
        self._hooks.disable()
        self._recorder.observed.activate(due=False, looked_at=False)

    def _end(self, reason: str) -> None:
        if self._begin_end(reason):
            self._finish_end(JOIN_S)

    def _begin_end(self, reason: str) -> bool:
        """Remove the hooks and let the sender end; return False if that was done before."""
        if self._closed or os.getpid() != self._pid:
            return False
        self._closed = True
        with self._faults.noting("close"):
            self._hooks.close()
        self._recorder.close()
        lifecycle.forget(self)
        self._sender.begin_close(reason, self._recorder.last_step)
        return True

    def _finish_end(self, timeout_s: float) -> None:
        self._sender.wait_closed(timeout_s)
        if undelivered := self._sender.describe_undelivered():
            tell(logging.WARNING, undelivered)

    def _valid(self, check: Callable[[Any], T], given: object) -> T | None:
        """Return what *check* makes of an argument; a wrong one must not cost the gradients."""
        try:
            return check(given)
        except Exception as error:  # noqa: BLE001 - the user's argument
            self._faults.note("collect", repr(error))
            return None


def find_http_url(bound: str, endpoint: str) -> str | None:
    """Return where HTTP is answered; None where that cannot be reached from here.

    Args:
        bound: Where the aggregator answers HTTP, as it is bound, such as `http://0.0.0.0:8420`;
            empty if it did not say.
    """
    match = _BOUND.fullmatch(bound)
    if match is None:
        return None
    scheme, host, port = match.groups()
    if _is_unspecified(host):  # on all addresses, so also on that by which records get there
        host = _host_of(endpoint)
    elif _is_loopback(host) and not _is_loopback(_host_of(endpoint)):
        return None  # on the aggregator's own machine only, which this may not be
    return f"{scheme}://{host}:{port}"


def _host_of(endpoint: str) -> str:
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc":
        return "127.0.0.1"
    return address.rpartition(";")[2].rpartition(":")[0]


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
