"""A state that was saved and restored goes on as the other one does."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.entries import Entry, Gap
from gradwatch_server.core.frames.layers import MAX_NUMEL
from gradwatch_server.core.frames.layout import Layout
from gradwatch_server.core.losses import MAX_COUNT
from gradwatch_server.core.run import Run
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_wire import Column
from gradwatch_wire.jsonable import jsonable
from tests.support.core import Cluster
from tests.support.whole_state import WholeState

NAN = math.nan


def restored(state: WholeState) -> WholeState:
    made = WholeState(state.window_steps)
    made.rules, made.budgets = state.rules, state.budgets
    made.forgotten = dict(state.forgotten)
    made.silences.replace(state.silences.state_dict())
    for run in state.runs.values():
        again = decode(encode(run), Run)
        for attempt in run.attempts:
            again.adopt(decode(encode(attempt), Attempt))
        for record, known in zip(again.open_records(), run.open_records(), strict=True):
            record.read(known.columns)  # from the log
        made.add(again)
    return made


def story_of(state: WholeState) -> Any:
    """Return all that readers see, comparable even with NaN in it."""
    return [repr(plain_view(view_run(run))) for run in state.runs.values()] + [
        sorted((s.id, s.acked, repr(s.losses.ranges())) for s in state.sessions.values())
    ]


def plain_view(view: Any) -> Any:
    series = [getattr(view.series, name).tolist() for name in view.series.__slots__]
    frame = view.frame and {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name in view.frame.__slots__
        if name != "parts"
        for value in [getattr(view.frame, name)]
    }
    marked = view.flags and {name: mask.tolist() for name, mask in view.flags.masks.items()}
    groups = {name: members.tolist() for name, members in view.groups.items()}
    alerts = [alert.to_dict() for alert in view.alerts]
    rest = replace(view, series=None, frame=None, flags=None, groups={}, alerts=())
    return rest, series, frame, marked, groups, alerts


NORMS = st.sampled_from([1.0, 1.0, 1.0, 500.0, 1e-9, NAN, math.inf, 0.1])
RANKS = st.integers(0, 2)
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), NORMS, NORMS),
        st.tuples(st.just("step"), NORMS, NORMS),
        st.tuples(st.just("one"), RANKS, NORMS),
        st.tuples(st.just("skip"), NORMS, NORMS),
        st.tuples(st.just("gains"), RANKS, NORMS),
        st.tuples(st.just("event"), RANKS, st.just(0)),
        st.tuples(st.just("gap"), RANKS, st.integers(1, 9)),
        st.tuples(st.just("lose"), RANKS, st.just(0)),
        st.tuples(st.just("bye"), RANKS, st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([1, 6]), st.just(0)),
        st.tuples(st.just("declare"), RANKS, st.sampled_from(["ab", "abc", "cb"])),
        st.tuples(st.just("again"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=30,
)


class Story:
    """Events of a job, one at a time."""

    def __init__(self, cluster: Any, **settings: Any) -> None:
        self.job = cluster(world=3, names=("a", "b"), groups={"g": (1,)}, **settings)
        exploding = {"layers": ["b"], "for_steps": 1}
        self.job.rules(vanishing={"for_steps": 2}, gain={"for_steps": 2}, exploding=exploding)
        self.job.start()
        self.next = 0
        self.names = dict.fromkeys(range(3), "ab")

    def do(self, deed: str, one: Any, two: Any) -> None:
        job = self.job
        if deed in ("step", "skip"):
            scale = {"loss_scale": 1.0} if deed == "skip" else {}
            for rank in range(3):
                job.stats(rank, self.next, self.sized(rank, one, two), loss=two, **scale)
            self.next += 1
        elif deed == "one":
            job.stats(one, self.next, self.sized(one, two, 1.0), nans=[0] * len(self.names[one]))
            self.next += 1
        elif deed == "gains":
            job.gains(one, self.next, 1.0, two, 8.0)
        elif deed == "event":
            job.event(one, "skipped_step", self.next)
        elif deed == "declare":
            self.names[one] = two
            job.declare(one, tuple(two), groups={})
        elif deed == "again":
            job.start(job=str(self.next))
            self.names, self.next = dict.fromkeys(range(3), "ab"), 0
        elif deed == "wait":
            job.wait(one)
        elif deed == "gap":
            job.gap(one, two)
        else:
            getattr(job, deed)(one)

    def sized(self, rank: int, one: float, two: float) -> list[float]:
        return [one, two, one][: len(self.names[rank])]


@pytest.mark.exhaustive
@pytest.mark.slow
@given(deeds=DEEDS, steps=st.sampled_from([8, 12, 64]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_restored_at_every_place_the_future_is_the_same(deeds: list[Any], steps: int) -> None:
    story = Story(Cluster, window_steps=steps)
    for deed in deeds:
        story.do(*deed)
    entries = story.job.entries

    restart(entries, live=WholeState(window_steps=steps))


def restart(
    entries: Sequence[Entry], first: int = 0, live: WholeState | None = None
) -> list[WholeState]:
    """Restart before each entry from one on; return what is there then, which is all the same."""
    live = Cluster().state if live is None else live
    others: list[WholeState] = []
    for number, entry in enumerate(entries):
        if number >= first:
            others.append(restored(live))
        told = live.apply(entry)
        others = [other for other in others if same(other.apply(entry), told)]
    assert len(others) == len(entries) - first
    expected = story_of(live)
    assert all(story_of(other) == expected for other in others)
    return others


def same(one: list[Any], other: list[Any]) -> bool:
    assert jsonable([a.to_dict() for a in one]) == jsonable([a.to_dict() for a in other])
    return True


def test_a_saved_state_is_not_changed_by_the_one_it_came_from() -> None:
    job = Cluster(world=2).start()
    job.step(0, 500.0)
    other = restored(job.state)
    before = copy.deepcopy(story_of(other))
    job.step(1, NAN)

    assert story_of(other) == before != story_of(job.state)


def test_ranks_of_one_layout_share_it_afterwards() -> None:
    """Records are told to be alike by it."""
    job = Cluster(world=2, names=("a", "b")).start()
    state = restored(job.state)
    layouts = [
        session.manifests[1].layout for session in state.runs["gpt"].current.sessions.values()
    ]

    assert layouts[0] is layouts[1]
    assert state.runs["gpt"].current.layers.share(Layout(layouts[0].index)) is layouts[0]


def test_pieces_of_layers_come_back() -> None:
    """A sharded step is put together from records before and after."""
    job = Cluster(world=2, names=("a",))
    for rank in range(2):
        job.open(rank)
        job.declare(rank, shards=(f"Shard(0) {rank}/2",))
    job.stats(0, 0, 3.0)
    state = restored(job.state)
    job.stats(1, 0, 4.0)
    state.apply(job.entries[-1])

    frame = state.runs["gpt"].current.last_frame
    assert frame is not None
    assert (frame.total_norm, frame.l2_max.tolist()) == (5.0, [5.0])


def test_sums_that_clients_claim_stay_within_64_bits() -> None:
    """Records that they lost, and elements of their layers."""
    job = Cluster().start()
    numel = Column.pack("<u8", [(1 << 64) - 1])
    job.declare(0, ("huge",), manifest_id=2, numel=numel)
    for _ in range(3):
        first = job.attempt.sessions[0].acked + 1
        job.put(Gap(job.sessions[0], first, first + (1 << 62)))
    state = restored(job.state)

    attempt = state.runs["gpt"].current
    assert attempt.sessions[0].num_lost == state.runs["gpt"].num_lost == MAX_COUNT
    assert attempt.counts.lost.value(0) == MAX_COUNT
    assert attempt.layers.numel[-1] == MAX_NUMEL


def test_a_saved_state_leaves_the_token_out() -> None:
    """It is a secret: a copy of the store must not open the aggregator to others."""
    job = Cluster()
    job.open(0, token="secret-of-the-run")

    assert job.attempt.sessions[0].hello.run == "gpt"
    assert b"secret-of-the-run" not in encode(job.attempt)
