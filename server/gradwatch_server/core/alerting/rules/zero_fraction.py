"""Layers in whose gradient more elements are zero than ever before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.evaluation import NUM_BEFORE, Context
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import Share, Steps
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.loss_harm import worse_with_loss
from gradwatch_server.core.alerting.rules.slow import began_before
from gradwatch_server.core.alerting.rules.told import told_modules
from gradwatch_server.core.alerting.wording import comparison, place
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, grown
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.packing import pack, unpack
from gradwatch_wire.columns import ZEROS
from gradwatch_wire.health import Severity

WEIGHT: Final = 0.03
"""Of a new share, as for norms."""

MIN_FRAMES: Final = 32
"""Frames that make a history."""

ACCEPTED_FRAMES: Final = 256
"""Shares that are high for so long are what is usual."""

MIN_NUMEL: Final = 8
"""Of a layer with fewer elements a share says little."""


_COUNTS: Final = ("frames", "away", "run")


class ZeroMemory:
    """The usual share of zeros of each layer.

    Attributes:
        usual: (layers,) weighted mean of the shares that were not told.
        frames: (layers,) frames so far, at most 32.
        shares: (layers,) of the latest frame; not saved.
        away: (layers,) frames since it is told, 0 otherwise.
        run: (layers,) frames in a row that it is high, unlike before.
    """

    def __init__(self) -> None:
        self.usual: FloatArray = np.zeros(0)
        self.frames: IndexArray = np.zeros(0, dtype=np.int64)
        self.away: IndexArray = np.zeros(0, dtype=np.int64)
        self.run: IndexArray = np.zeros(0, dtype=np.int64)
        self.shares: FloatArray = np.zeros(0)
        self._numel: FloatArray = np.zeros(0)
        self._any_high = self._is_settled = False

    def measure(self, zeros: FloatArray, numel: FloatArray) -> FloatArray:
        """Return (layers,) shares of a frame's zeros, NaN where unknown or of too few elements."""
        if len(self._numel) != len(zeros):
            own = numel[: len(zeros)]
            self._numel = np.where(own >= MIN_NUMEL, own, np.nan)
        shares: FloatArray = zeros / self._numel
        return shares

    def follow(self, shares: FloatArray, share: float, frames: int) -> BoolArray:
        """Take in a frame's shares, NaN where unknown; return (layers,) which rose for good."""
        number = len(shares)
        self.shares = shares
        if number > len(self.usual):
            for name in _COUNTS:
                setattr(self, name, grown(getattr(self, name), number, 0))
            self.usual = grown(self.usual, number, 0.0)
            self._is_settled = False
        high: BoolArray = shares > share
        if self._any_high or np.count_nonzero(high):
            high &= (self.usual < share / 2.0) & (self.frames >= MIN_FRAMES)
            self._rise(shares, high, share, frames)
            self._learn(np.where(high | (self.away > 0), np.nan, shares))
            self._look_again()
            high = self.away > 0
        else:  # nearly always
            self._learn(shares)
        return high

    def _rise(self, shares: FloatArray, high: BoolArray, share: float, frames: int) -> None:
        self.run = np.where(high, self.run + 1, np.where(np.isnan(shares), self.run, 0))
        stays = (self.away > 0) & ~(shares < share / 2.0)
        self.away = np.where((self.run >= frames) | stays, self.away + 1, 0)
        over = (self.away > ACCEPTED_FRAMES) & ~np.isnan(shares)
        self.away[over] = self.run[over] = 0
        self.usual[over] = shares[over]

    def _learn(self, shares: FloatArray) -> None:
        change = shares - self.usual
        if self._is_settled:
            change *= WEIGHT
        else:
            change *= np.maximum(WEIGHT, 1.0 / (self.frames + 1.0))
            self.frames = np.minimum(self.frames + ~np.isnan(shares), MIN_FRAMES)
            settled = np.count_nonzero(self.frames == MIN_FRAMES)
            self._is_settled = settled == len(self.frames)
        if change.size and math.isnan(change.item(change.argmax())):  # one of them is
            change[np.isnan(change)] = 0.0
        self.usual += change

    def _look_again(self) -> None:
        self._any_high = bool(np.count_nonzero(self.run) or np.count_nonzero(self.away))

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {name: pack(getattr(self, name)) for name in ("usual", *_COUNTS)}

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self.usual = np.array(unpack(plain["usual"]), dtype=np.float64)
        for name in _COUNTS:
            setattr(self, name, np.array(unpack(plain[name]), dtype=np.int64))
        self._is_settled = False  # found out by the next frame
        self._look_again()


class ZeroFractionRule(LayerRule):
    """A layer in whose gradient more than `share` of the elements are exactly zero.

    Only where it was not so before: its usual share was below half of that over at least 32 frames,
    and it is above it for `rise_steps` in a row. Many layers have many zeros always: embeddings,
    what comes after a ReLU. It is over when the share is below half of `share` again, or after 256
    frames. Layers of fewer than 8 elements are not judged.

    It is a warning where the mean of the loss over 16 frames has left its level as well (4 standard
    errors, see `loss`).

    A module that is zero altogether is told by the rules `dead_layer` and `vanishing`.
    """

    name = "zero_fraction"
    follows = ("nonfinite", "exploding", "spike", "dead_layer", "vanishing", "loss")
    yields_to = ("dead_layer", "vanishing")
    formula = """
        with f the share of a layer's elements that are zero: `f > share` for `rise_steps` frames in
        a row, and the usual f was below `share / 2`; held until `f < share / 2`. The usual f is a
        mean of the frames before, weighted with 0.03.
    """
    tuning = """
        Raise `share` where activations become sparse by design, or leave such layers out:
        `layers = ["!*.experts.*"]`. Raise `rise_steps` if single batches are empty or padded.
    """
    source = """
        One half is the limit of the documents that gradwatch was made from. As a share alone it
        tells of every embedding, so it takes a rise. By itself it says nothing of harm: hence
        `info`.
    """

    share: Share = Field(0.5, description="Share of zeros above which it is told.")
    rise_steps: Steps = Field(8, description="Consecutive frames above it.")
    severity: Severity = Field(Severity.INFO, description="Severity of its alerts.")

    def memory(self) -> ZeroMemory:
        """Return a new memory."""
        return ZeroMemory()

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        """Return the layers whose share of zeros rose, (layers,)."""
        zeros = observation.column(ZEROS)
        if len(context.numel) < len(zeros):
            return np.zeros(len(zeros), dtype=np.bool_)
        memory = self._memory(context)
        shares = memory.measure(zeros, context.numel)
        rose = memory.follow(shares, self.share, self.rise_steps)
        if np.count_nonzero(rose):
            modules = context.judge(observation).modules
            rose = rose & ~modules.spread(told_modules(context, len(modules.names)), len(rose))
        return rose

    def severity_with(self, frame: Frame, context: Context, in_a_row: int) -> Severity:
        """Return a warning where the loss has left its level as well."""
        return worse_with_loss(self.severity, context.judge(frame))

    def threshold(self) -> float:
        """Return the share."""
        return self.share

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return the layer whose share rose most, and the step at which it had risen."""
        memory = self._memory(context)
        indices = np.flatnonzero(raised)
        rise = np.nan_to_num(memory.shares[indices] - memory.usual[indices], nan=-1.0)
        layer = int(indices[np.argmax(rise)])
        ranks = self.find_ranks(frame, layer)
        found = Origin(
            step=frame.step,
            rank=one_rank(ranks),
            ranks=ranks,
            layer=context.names[layer],
            kind=None,
            value=float(memory.shares[layer]),
            threshold=self.share,
            before=context.window.before(layer, NUM_BEFORE),
            usual=float(memory.usual[layer]),
        )
        return began_before(found, context, self.rise_steps - 1 + int(memory.away[layer]) - 1)

    def describe(self, origin: Origin) -> str:
        """Return what is wrong in a few words."""
        usual = f", usually {origin.usual:.2g}" if origin.usual is not None else ""
        return f"share of zeros in the gradient of {place(origin)} is {comparison(origin)}{usual}"

    def _memory(self, context: Context) -> ZeroMemory:
        memory = context.memory(self.name)
        assert isinstance(memory, ZeroMemory)  # noqa: S101 - for the type checker
        return memory
