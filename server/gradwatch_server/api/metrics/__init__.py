"""Metrics: one table of definitions, of which `/metrics` and docs/metrics.md are made."""
