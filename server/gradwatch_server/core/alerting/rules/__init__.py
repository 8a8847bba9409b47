"""The rules, a file each: settings, evaluation, origin, message and documentation.

A new rule is a new file here, and one line in `registry.py`.
"""

from gradwatch_server.core.alerting.rules.table import Rules

__all__ = ["Rules"]
