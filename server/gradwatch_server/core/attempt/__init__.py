"""One attempt of a run: its sessions, its open and its closed frames, and how alive it is."""

from gradwatch_server.core.attempt.attempt import Attempt

__all__ = ["Attempt"]
