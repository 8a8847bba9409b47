"""Metrics: one table of definitions, from which `/metrics` and the documentation are made."""
