"""Curves of closed frames: rows, buckets of them, and what is drawn of these. No I/O, no clock."""
