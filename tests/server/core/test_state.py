"""The state: what the entries of a log make of runs, attempts, sessions and alerts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwatch_server.core.attempt_history import MAX_SHOWN, RETURN_NS
from gradwatch_server.core.frames import layers
from gradwatch_server.core.losses import MAX_EVENT_NAMES
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_wire import Column
from gradwatch_wire.health import RankState
from gradwatch_wire.jsonable import jsonable
from tests.support.core import Cluster, stats_of
from tests.support.whole_state import WholeState

NAN = math.nan


def test_ranks_of_one_launch_are_one_attempt() -> None:
    job = Cluster(world=3).start()
    run = job.state.runs["gpt"]

    assert [attempt.number for attempt in run.attempts] == [1]
    assert sorted(job.attempt.sessions) == [0, 1, 2]


def test_a_rank_that_attaches_again_begins_a_new_attempt() -> None:
    """The first to come back opens it, the others join it; steps begin anew."""
    job = Cluster(world=2).start()
    job.step(0)
    job.step(1)
    job.start()
    assert job.attempt.number == 2
    assert sorted(job.attempt.sessions) == [0, 1]

    job.step(0)

    assert job.closed == [0]
    assert job.health()["attempt"] == 2
    assert job.health()["step"] == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"world": 2}, {"world": 4}),
        ({"world": 4}, {"world": 2}),
        ({"job": "77/0"}, {"job": "77/1"}),
        ({"job": ""}, {"job": "78/0"}),
    ],
)
def test_another_world_or_job_is_another_attempt(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    """A launch has one size and one job id: a rank of the next must not join the last."""
    job = Cluster(world=2)
    job.open(0, **first)
    job.open(1, **second)

    assert job.attempt.number == 2
    assert sorted(job.attempt.sessions) == [1]
    assert job.attempt.world == second.get("world", 2)


def test_a_new_attempt_closes_the_frames_of_the_last() -> None:
    job = Cluster(world=2, names=("a",))
    job.open(0)
    job.declare(0)
    job.stats(0, 5, [NAN], loss=NAN)
    job.bye(0)  # the other rank may still attach

    (alert,) = job.open(0)

    assert (alert.attempt, alert.first_step, alert.origin.bad_loss) == (1, 5, True)


def test_the_last_attempt_keeps_its_alerts_as_they_stood() -> None:
    job = Cluster(names=("a",)).start()
    job.step(0, [500.0])
    job.step(1, [500.0])
    job.step(2, [1e-9])  # makes a pending one
    job.start()
    job.step(0)
    alerts = view_run(job.state.runs["gpt"]).alerts

    assert {(a.attempt, str(a.rule), str(a.state)) for a in alerts} == {
        (1, "exploding", "firing"),
        (1, "vanishing", "pending"),
    }
    assert job.health()["alerts"] == {"firing": 0, "pending": 0, "items": []}
    assert job.health()["status"] == "healthy"


def test_the_same_trouble_in_the_next_attempt_is_another_alert() -> None:
    job = Cluster(names=("a",)).start()
    (first,) = job.step(3, NAN)
    job.start()
    (second,) = job.step(3, NAN)

    assert (first.attempt, second.attempt) == (1, 2)
    assert first.id != second.id


def test_records_of_a_session_that_was_replaced_are_judged_in_their_own_attempt() -> None:
    """A process that outlives its successor's start does not disturb it."""
    job = Cluster(names=("a",)).start()
    old = job.sessions[0]
    job.start()
    job.step(0, [1.0])
    stored = job.health()["records"]["stored"]

    (alert,) = job.send(0, stats_of(1, [NAN]), session=old)
    assert (alert.attempt, alert.rule) == (1, "nonfinite")
    assert job.closed == [0]
    assert job.health()["first_bad"] is None
    assert job.health()["records"]["stored"] == stored + 1


def test_records_of_an_attempt_that_is_over_are_stored_and_not_judged() -> None:
    job = Cluster(names=("a",)).start()
    old = job.sessions[0]
    job.lose(0)
    job.wait(RETURN_NS / 1e9)
    job.start()

    assert job.send(0, stats_of(1, [NAN]), session=old) == []
    assert job.state.runs["gpt"].attempts[0].counts.num_late == 1


def test_the_time_in_which_the_aggregator_was_away_ends_no_attempt() -> None:
    job = Cluster(names=("a",)).start()
    old = job.sessions[0]
    job.lose(0)
    job.resume(after=2 * RETURN_NS / 1e9)
    job.start()

    (alert,) = job.send(0, stats_of(1, [NAN]), session=old)
    assert (alert.attempt, alert.rule) == (1, "nonfinite")


def test_old_attempts_that_are_over_hold_no_arrays() -> None:
    """A job that restarts a thousand times must not keep a thousand windows and last frames."""
    job = Cluster(world=2, names=[f"l{i}" for i in range(200)]).start()
    for step in range(40):
        job.step(step)
    first = job.attempt
    for number in range(MAX_SHOWN):
        for rank in range(2):
            job.bye(rank)
        assert first.last_frame is not None
        job.start(job=str(number))

    assert (first.last_frame, first.closed.last_flags, first.closed.last_gains) == (
        None,
        None,
        None,
    )
    assert (first.layers.names, first.layers.numel) == ([], [])
    assert len(first.window) == 0
    assert all(not session.manifests for session in first.sessions.values())


def test_a_session_lost_and_back_is_the_same_session() -> None:
    job = Cluster(world=2).start()
    states = []
    for change in (job.lose, job.back):
        change(1)
        states.append(job.attempt.sessions[1].state)
    job.step(0)

    assert states == [RankState.LOST, RankState.ALIVE]
    assert job.attempt.number == 1
    assert job.frame.coverage == 1.0


@pytest.mark.parametrize(
    ("reason", "state"), [("closed", RankState.ENDED), ("exception", RankState.FAILED)]
)
def test_a_rank_that_said_bye_has_ended_or_failed(reason: str, state: RankState) -> None:
    job = Cluster().start()
    job.bye(0, reason)
    session = job.attempt.sessions[0]

    assert (session.state, session.reason) == (state, reason)


@pytest.mark.parametrize(
    "changes", [{"manifest_id": 9}, {"l2": [1.0, 2.0]}, {"l2": []}], ids=["id", "short", "empty"]
)
def test_records_that_do_not_fit_their_manifest_are_unresolved(changes: dict[str, Any]) -> None:
    job = Cluster(names=("a", "b", "c")).start()

    job.send(0, stats_of(0, **{"l2": [1.0] * 3} | changes))

    assert job.closed == []
    health = job.health()
    assert (health["records"]["unresolved"], health["records"]["stored"]) == (1, 2)
    assert health["ranks"][0]["unresolved"] == 1
    assert health["ranks"][0]["last_step"] == 0


@pytest.mark.parametrize("names", [("a",), ()], ids=["a layer", "no layer"])
def test_a_record_without_norms_is_unresolved(names: tuple[str, ...]) -> None:
    """`l2` is the one column that the rules cannot do without; of no layers it is empty."""
    job = Cluster(names=names).start()
    stats = stats_of(0, [1.0] * len(names), linf=[1.0] * len(names))
    columns = {"linf": stats.columns["linf"]}

    job.send(0, type(stats)(manifest_id=1, step=0, columns=columns))

    assert job.health()["records"]["unresolved"] == 1


def test_numbers_of_every_dtype_are_read() -> None:
    """A client may send norms in 4 or 8 bytes, floating or not."""
    job = Cluster(names=("a", "b")).start()
    stats = stats_of(0, [1.0, 2.0])
    for step, code in enumerate(("<f4", "<f8", "<u4", "<u8")):
        column = type(stats.columns["l2"]).pack(code, [1, 2])
        job.send(0, type(stats)(manifest_id=1, step=step, columns={"l2": column}))
        assert job.frame.l2_max.tolist() == [1.0, 2.0]


def test_any_bits_are_a_number() -> None:
    """A signalling NaN, which a conversion would warn of, is a NaN like any other."""
    job = Cluster(names=("a",)).start()
    stats = stats_of(0, [1.0])
    column = Column.of("<f4", b"\x01\x00\x80\x7f")
    job.send(0, type(stats)(manifest_id=1, step=0, columns={"l2": column}))

    assert job.frame.nonfinite.tolist() == [True]


def test_a_gap_is_counted_for_its_rank_and_its_run() -> None:
    job = Cluster(world=2).start()
    job.gap(1, 7)
    job.start()
    job.gap(0, 2)
    health = job.health()

    assert health["records"]["lost"] == 9
    assert [rank["lost"] for rank in health["ranks"]] == [2, 0]
    assert job.state.sessions[job.sessions[0]].acked == 3


def test_runs_do_not_touch_each_other() -> None:
    state = WholeState()
    one = Cluster(names=("a",), run="one", state=state).start()
    two = Cluster(names=("a",), run="two", state=state).start()
    one.step(0, NAN)
    two.step(0, 1.0)

    assert one.health()["status"] == "critical"
    assert two.health()["status"] == "healthy"
    assert [a.run for a in one.alerts + two.alerts] == ["one"]


def test_events_are_counted_by_name_within_a_bound() -> None:
    """Names a client makes up without end are counted together."""
    job = Cluster().start()
    for i in range(MAX_EVENT_NAMES + 5):
        job.event(0, f"e{i}")
    job.event(0, "e0")
    counts = job.attempt.counts.events

    assert (counts["e0"], counts["other"], len(counts)) == (2, 5, MAX_EVENT_NAMES + 1)


def test_skipped_steps_are_counted_once() -> None:
    job = Cluster(world=2).start()
    for step in (3, 3, 7):
        for rank in (0, 1):
            job.event(rank, "skipped_step", step)
    job.event(1, "skipped_step", 9)
    job.event(0, "mark", 11)
    view = view_run(job.state.runs["gpt"])

    assert view.skipped_steps == 3
    assert view.events["skipped_step"] == 7


def test_layers_of_an_attempt_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that would go beyond is not taken in; its records are unresolved, others fine."""
    monkeypatch.setattr(layers, "MAX_LAYERS", 5)
    job = Cluster(names=("a", "b", "c")).start()
    job.declare(0, ["d", "e", "f"], manifest_id=2)
    job.stats(0, 0, [1.0] * 3, manifest_id=2)
    job.stats(0, 1, [1.0] * 3, manifest_id=1)

    assert job.attempt.layers.names == ["a", "b", "c"]
    assert job.closed == [1]
    assert job.health()["records"]["unresolved"] == 2


# Any log at all: what a random cluster does.

RANKS = st.integers(0, 2)
NORMS = st.lists(
    st.sampled_from([1.0, 1.0, 60.0, 500.0, 1e-9, 0.0, math.nan, math.inf]), min_size=2, max_size=2
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), RANKS),
        st.tuples(st.just("declare"), RANKS),
        st.tuples(st.just("stats"), RANKS, st.integers(0, 12), NORMS),
        st.tuples(st.just("stats"), RANKS, st.integers(0, 12), NORMS),
        st.tuples(st.just("all"), st.integers(0, 12), NORMS),
        st.tuples(st.just("bye"), RANKS),
        st.tuples(st.just("lose"), RANKS),
        st.tuples(st.just("back"), RANKS),
        st.tuples(st.just("gap"), RANKS),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 3.0, 6.0])),
        st.tuples(st.just("rules"), st.integers(1, 3)),
    ),
    max_size=50,
)


def play(job: Any, actions: list[Any]) -> None:
    """Do what was drawn; the steps of a session only go up, as a client's do."""
    steps = dict.fromkeys(range(3), 0)
    for action, *values in actions:
        match action:
            case "stats":
                rank, ahead, norms = values
                steps[rank] += ahead
                job.stats(rank, steps[rank], norms, loss=norms[0] if rank else None)
            case "all":
                ahead, norms = values
                step = max(steps.values()) + ahead
                for rank in range(3):
                    steps[rank] = step
                    job.stats(rank, step, norms)
            case "gap":
                job.gap(values[0], 3)
            case "rules":
                job.rules(nonfinite={"clear_steps": values[0]}, exploding={"for_steps": values[0]})
            case _:
                getattr(job, action)(*values)


def facts(state: WholeState) -> Any:
    return [
        (
            [(a.id, a.state, a.to_dict()) for a in view.alerts],
            {
                name: getattr(view, name)
                for name in ("attempts", "world", "names", "ranks", "events", "stored", "lost")
            },
            (view.late, view.unresolved, view.frames, view.first_bad, view.updated_ns),
            [np.asarray(getattr(view.series, name)).tobytes() for name in ("steps", "total_norm")],
            view.frame.columns.tobytes() if view.frame else None,
        )
        for view in map(view_run, state.runs.values())
    ]


@pytest.mark.slow
@given(actions=ACTIONS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_the_same_log_gives_the_same_state_and_alerts(actions: list[Any]) -> None:
    job = Cluster(world=3, names=("a", "b")).start()
    play(job, actions)

    again, told = WholeState(), []
    for entry in job.entries:
        told += again.apply(entry)

    assert [jsonable(alert.to_dict()) for alert in told] == [
        jsonable(alert.to_dict()) for alert in job.alerts
    ]
    assert repr(facts(again)) == repr(facts(job.state))


@pytest.mark.slow
@given(actions=ACTIONS)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_no_alert_is_told_twice_in_one_state(actions: list[Any]) -> None:
    """The store holds each (id, change) once; a second would be lost in silence."""
    job = Cluster(world=3, names=("a", "b")).start()
    play(job, actions)
    told = [(a.id, a.change) for a in job.alerts]

    assert len(set(told)) == len(told)
    for alert in job.alerts:
        assert alert.state in ("firing", "resolved")
        if alert.state == "resolved":
            assert (alert.id, "firing") in told[: told.index((alert.id, alert.change))]


@pytest.mark.slow
@given(actions=ACTIONS)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_every_record_is_accounted_for(actions: list[Any]) -> None:
    """Per rank: what its log has is stored, lost is what its gaps say, all else never was."""
    job = Cluster(world=3, names=("a", "b")).start()
    play(job, actions)
    run = job.state.runs["gpt"]

    for session in job.state.sessions.values():
        assert session.num_stored + session.num_lost == session.acked
    assert run.num_stored == sum(s.num_stored for s in job.state.sessions.values())
    assert run.num_lost == sum(s.num_lost for s in job.state.sessions.values())
