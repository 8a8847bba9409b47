"""Errors a person can do something about.

* `GradwatchError`: says what was wrong, what was given and what to do; the command prints it in
  one line and exits 1
"""


class GradwatchError(Exception):
    """A fault in what was asked for or in the machine, not in the code."""
