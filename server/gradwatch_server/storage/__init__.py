"""What is kept on disk: the log, alert events, the saved state."""
