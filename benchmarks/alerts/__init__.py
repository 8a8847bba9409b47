"""The labelled set behind `scripts/bench alerts`: real trainings, recorded, with known faults.

`make.py` trains every family by random recipes and writes one file per run. To read them back:

    from benchmarks.alerts.store import Collection
    from benchmarks.alerts.replay import entries

    runs = Collection(directory)
    for name in runs.names:
        recorded = runs.read(name)          # a `Recorded`, see `recorded.py`
        for entry in entries(recorded):     # what the log of an aggregator would hold
            alerts = state.apply(entry)

A run is either healthy (`recorded.fault is None`, every step of it counts as healthy) or a fork:
the steps of its healthy parent up to `recorded.forked_at`, and from there on what the fault made
of it.
`recorded.fault` says what was done and where, and which rules are right to tell. Everything in it
was asserted on the recorded numbers when the fork was made (`labels.py`).

`entries(parent)` and `entries(fork)` are the same entry for entry up to the fork, so that the state
before it can be kept (`copy.deepcopy(state)`) and used for all forks: `entries(fork,
from_step=fork.forked_at)` gives the rest.

What is not there: BEATs, as the log has none, so that a `stall` is a gap in time and nothing else;
outputs of modules (`attach(activations=...)`); and several optimizers, whose records come in parts.
"""
