"""The state that follows from the log: frames, windows, rules, alerts. No I/O, clock or threads.

Entries of a run's log go in through `run.Run.apply`, alerts come out, and `views.snapshot.view_run`
gives readers an immutable view of a run. The same log gives the same alerts.
"""
