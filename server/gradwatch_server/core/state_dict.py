"""The state as plain data, and back: what a checkpoint holds.

A state that was frozen and thawed goes on as the other one would have. Everything is written out by
name, so that a version that knows more can still read what one wrote that knew less: what is
added later is read with a default. All but the rows of the windows, which are large and change
little: `Window.chunk` gives those. Plain data are what msgpack packs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any, Final, TypeAlias

from gradwatch_server.core.alerting.active import ActiveAlerts
from gradwatch_server.core.alerting.flags import flags_from_state_dict, flags_state_dict
from gradwatch_server.core.alerting.origin import FirstBad
from gradwatch_server.core.attempts import Attempt, Declared, Session
from gradwatch_server.core.frames.assembler import Assembler
from gradwatch_server.core.frames.frame import FloatArray, Frame, Layout, RankPart, Shards
from gradwatch_server.core.frames.gains import GainFrame, RankGains
from gradwatch_server.core.frames.layers import Layers
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.losses import Losses
from gradwatch_server.core.packing import pack, unpack, unpack_flags, unpack_numbers
from gradwatch_server.core.state import Run
from gradwatch_wire import Hello
from gradwatch_wire.health import RankState

Plain: TypeAlias = dict[str, Any]

_INT64: Final = 1 << 63

_COUNTERS: Final = ("acked", "num_stored", "num_lost", "num_unresolved", "num_skipped")
_ARRAYS: Final = ("l2_max", "l2_min", "columns")
_FRAME: Final = (
    "step", "bad_step", "received_ns", "measured", "num_partial", "total_norm", "loss",
    "loss_scale", "coverage",
)  # fmt: skip


def run_state_dict(run: Run) -> Plain:
    """Return a run without its attempts."""
    return {
        "created_ns": run.created_ns,
        "num_stored": _whole(run.num_stored),
        "num_lost": _whole(run.num_lost),
    }


def run_from_state_dict(name: str, plain: Plain) -> Run:
    """Return a run that has no attempt yet."""
    return Run(
        name,
        plain["created_ns"],
        num_stored=int(plain["num_stored"]),
        num_lost=int(plain["num_lost"]),
    )


def attempt_state_dict(attempt: Attempt) -> Plain:
    """Return an attempt without the rows of its window."""
    layouts = _Layouts()
    return {
        "number": attempt.number,
        "job": attempt.job,
        "world": attempt.world,
        "replayed": attempt.replayed,
        "started_ns": attempt.started_ns,
        "updated_ns": attempt.updated_ns,
        "sessions": [_freeze_session(own, layouts) for own in attempt.sessions.values()],
        "layers": _freeze_layers(attempt.layers),
        "window": attempt.window.freeze(),
        "book": attempt.active_alerts.state_dict(),
        "first_bad": asdict(attempt.first_bad) if attempt.first_bad else None,
        "frame": _freeze_frame(attempt.last_frame),
        "flags": None if attempt.last_flags is None else flags_state_dict(attempt.last_flags),
        "gains": asdict(attempt.last_gains) if attempt.last_gains else None,
        "events": list(attempt.events.items()),
        "num_frames": attempt.num_frames,
        "num_late": attempt.num_late,
        "retired": attempt.retired,
        "open_frames": attempt.open_frames.freeze(lambda part: _freeze_part(part, layouts)),
        "open_gains": attempt.open_gains.freeze(_freeze_gains),
        "layouts": layouts.plain,  # filled by those above
    }


def attempt_from_state_dict(
    run: str, plain: Plain, steps: Iterable[tuple[int, FloatArray]]
) -> Attempt:
    """Return the attempt that `attempt_state_dict` described; the columns of its window are absent.

    Args:
        run: Name of its run.
        plain: What it described.
        steps: Number and `steps` of all chunks of the window.

    Raises:
        Exception: Of any kind if *plain* is not what it described.
    """
    hello = Hello(run=run, rank=0, world=plain["world"], job=plain["job"])
    attempt = Attempt(run, plain["number"], hello, plain["started_ns"], 1)
    attempt.updated_ns = plain["updated_ns"]
    attempt.replayed = plain.get("replayed", False)
    attempt.layers = _thaw_layers(plain["layers"])
    layouts = [_thaw_layout(own, attempt.layers) for own in plain["layouts"]]
    for own in plain["sessions"]:
        session = _thaw_session(own, run, attempt, layouts)
        attempt.join(session)
        attempt.set_state(session, session.state)
    attempt.retired = plain["retired"]
    attempt.window = Window.thaw(plain["window"], steps)
    attempt.active_alerts = ActiveAlerts.from_state_dict(plain["book"])
    attempt.first_bad = FirstBad(**plain["first_bad"]) if plain["first_bad"] else None
    attempt.last_frame = _thaw_frame(plain["frame"])
    attempt.last_flags = None if plain["flags"] is None else flags_from_state_dict(plain["flags"])
    attempt.last_gains = _thaw_gain_frame(plain["gains"])
    attempt.events = Counter(dict(plain["events"]))
    attempt.num_frames, attempt.num_late = plain["num_frames"], plain["num_late"]
    attempt.open_frames = Assembler.thaw(
        plain["open_frames"], lambda part: _thaw_part(part, layouts)
    )
    attempt.open_gains = Assembler.thaw(plain["open_gains"], _thaw_gains)
    return attempt


def _whole(number: int) -> int | str:
    """Spell a number that msgpack cannot: a sum of what hostile clients claim to have lost."""
    return number if number < _INT64 else str(number)


class _Layouts:
    """Numbers the layouts of an attempt: ranks that share one must share it afterwards, too."""

    def __init__(self) -> None:
        self.plain: list[Plain] = []
        self._numbers: dict[int, int] = {}

    def number(self, layout: Layout) -> int:
        """Return the place of a layout in `plain`."""
        found = self._numbers.get(id(layout))
        if found is None:
            found = self._numbers[id(layout)] = len(self.plain)
            pieces = layout.pieces
            cut = (
                None if pieces is None else [pack(getattr(pieces, f.name)) for f in fields(pieces)]
            )
            self.plain.append({"index": pack(layout.index), "pieces": cut})
        return found


def _thaw_layout(plain: Plain, layers: Layers) -> Layout:
    pieces = plain["pieces"]
    return layers.share(
        unpack(plain["index"]), None if pieces is None else Shards(*map(unpack, pieces))
    )


def _freeze_layers(layers: Layers) -> Plain:
    # As float64, for the size of a layer may be 2^64, which msgpack cannot spell.
    return layers.freeze() | {"numel": [float(numel) for numel in layers.numel]}


def _thaw_layers(plain: Plain) -> Layers:
    return Layers.thaw(plain | {"numel": [int(numel) for numel in plain["numel"]]})


def _freeze_session(session: Session, layouts: _Layouts) -> Plain:
    hello = session.hello
    return {
        "id": session.id,
        "rank": hello.rank,
        "world": hello.world,
        "host": hello.host,
        "pid": hello.pid,
        "versions": dict(hello.versions),
        "job": hello.job,
        "last_ns": session.last_ns,
        "state": str(session.state),
        "last_skipped": session.last_skipped,
        "last_step": session.last_step,
        "reason": session.reason,
        "losses": session.losses.freeze(),
        "counters": [_whole(getattr(session, name)) for name in _COUNTERS],
        "manifests": [
            [number, layouts.number(own.layout), own.ordered]
            for number, own in session.manifests.items()
        ],
    }


def _thaw_session(plain: Plain, run: str, attempt: Attempt, layouts: list[Layout]) -> Session:
    of_hello = ("rank", "world", "host", "pid", "versions", "job")
    hello = Hello(run=run, **{key: plain[key] for key in of_hello})
    session = Session(plain["id"], hello, attempt, plain["last_ns"], RankState(plain["state"]))
    for name, value in zip(_COUNTERS, plain["counters"], strict=True):
        setattr(session, name, int(value))
    for name in ("last_skipped", "last_step", "reason"):
        setattr(session, name, plain[name])
    session.losses = Losses.thaw(plain.get("losses", ()))
    for number, layout, ordered in plain["manifests"]:
        session.manifests[number] = Declared(layouts[layout], ordered)
    return session


def _freeze_part(part: RankPart, layouts: _Layouts) -> list[Any]:
    values = {name: pack(column) for name, column in part.values.items()}
    own = [part.rank, layouts.number(part.layout), part.ordered]
    return [*own, values, dict(part.scalars), dict(part.labels)]


def _thaw_part(plain: list[Any], layouts: list[Layout]) -> RankPart:
    rank, layout, ordered, values, scalars, labels = plain
    columns = {name: unpack_numbers(column) for name, column in values.items()}
    return RankPart(rank, layouts[layout], ordered, columns, scalars, labels)


def _freeze_gains(gains: RankGains) -> list[Any]:
    return [gains.rank, gains.blocks, gains.norm_type, pack(gains.norms)]


def _thaw_gains(plain: list[Any]) -> RankGains:
    rank, blocks, norm_type, norms = plain
    return RankGains(rank, tuple(blocks), norm_type, unpack_numbers(norms))


def _thaw_gain_frame(plain: Plain | None) -> GainFrame | None:
    if plain is None:
        return None
    known: Plain = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
    return GainFrame(**known)


def _freeze_frame(frame: Frame | None) -> Plain | None:
    if frame is None:
        return None
    plain: Plain = {name: getattr(frame, name) for name in _FRAME}
    for name in (*_ARRAYS, "present", "nonfinite"):
        plain[name] = pack(getattr(frame, name))
    return plain


def _thaw_frame(plain: Plain | None) -> Frame | None:
    if plain is None:
        return None
    known: Plain = {name: plain[name] for name in _FRAME} | {"measured": tuple(plain["measured"])}
    known |= {name: unpack_numbers(plain[name]) for name in _ARRAYS}
    known |= {name: unpack_flags(plain[name]) for name in ("present", "nonfinite")}
    return Frame(parts=(), **known)
