"""The state that follows from the log: frames, windows, rules, alerts. No I/O, clock or threads.

Entries of the log go in through `state.State.apply`, alerts come out, and `views.snapshot.view_run`
gives readers an immutable view of a run. The same log gives the same alerts.
"""
