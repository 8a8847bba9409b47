"""Metrics: one table of definitions, from which `/metrics`, OTLP and the documentation are made."""
