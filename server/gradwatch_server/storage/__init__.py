"""Data on disk: the logs, alert events, the saved state."""
