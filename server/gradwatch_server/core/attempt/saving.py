"""Saving an attempt: plain data of all that is known of it, and the attempt from them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gradwatch_server.core.frames.layers import Layers
from gradwatch_server.core.frames.layout import LayoutTable, unpack_layout
from gradwatch_server.core.packing import pack_integer
from gradwatch_server.core.session import Session

if TYPE_CHECKING:
    from gradwatch_server.core.attempt.attempt import Attempt

_OWN: Final = (
    *("number", "job", "world", "replayed", "started_ns"),
    *("updated_ns", "retired"),
)


def state_dict(attempt: Attempt) -> dict[str, Any]:
    """Return what `Attempt.state_dict` gives."""
    layouts = LayoutTable()
    return {
        **{name: getattr(attempt, name) for name in _OWN},
        "sessions": [own.state_dict(layouts) for own in attempt.sessions.values()],
        "num_late": attempt.counts.num_late,
        "events": list(attempt.counts.events.items()),
        **attempt.closed.state_dict(layouts),
        **attempt.open.state_dict(layouts),
        "signs": attempt.signs.state_dict(),
        "epoch": attempt.closed.epoch,
        "first_bad_at": pack_integer(attempt.closed.first_bad_at),
        "recent": attempt.counts.recent_state_dict(),
        "steps": attempt.open.order_state_dict(layouts),
        "layouts": layouts.states,  # which those above have filled
    }


def load_state_dict(attempt: Attempt, state: Mapping[str, Any]) -> None:
    """Let a new attempt take over what `state_dict` described, see `Attempt.from_state_dict`."""
    for name in _OWN:
        setattr(attempt, name, state[name])
    layers = Layers.from_state_dict(state["layers"])
    layouts = [layers.share(unpack_layout(own)) for own in state["layouts"]]
    for own in state["sessions"]:
        attempt.join(Session.from_state_dict(own, attempt.run, attempt.number, layouts))
    attempt.counts.num_late = state["num_late"]
    attempt.counts.events = Counter(dict(state["events"]))
    attempt.open.load_state_dict(state, layouts)
    attempt.closed.load_state_dict(state, layers, layouts)
    attempt.signs.load_state_dict(state["signs"])
    attempt.closed.epoch = state["epoch"]
    attempt.closed.first_bad_at = int(state["first_bad_at"])
    attempt.counts.load_recent_state_dict(state["recent"])
    attempt.open.load_order_state_dict(state["steps"], layouts)
