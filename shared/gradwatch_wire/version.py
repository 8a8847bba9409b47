"""The version of the distribution and of the protocol, in one place."""

__version__ = "0.1.0"

PROTOCOL_MAJOR = 1
"""Frame 0 of every message. A new major only for what an old reader would misread."""

PROTOCOL_MINOR = 1
"""Counts additions: new optional keys, new kinds. Told in HELLO and WELCOME, never enforced."""
