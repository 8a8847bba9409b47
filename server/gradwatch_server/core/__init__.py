"""The fold over the log: frames, windows, rules, alerts. No I/O, no clock, no threads.

Entries of the log go in through `fold.State.apply`, alert events come out, and
`State.snapshot` gives readers an immutable view. The same log gives the same alerts.
"""
