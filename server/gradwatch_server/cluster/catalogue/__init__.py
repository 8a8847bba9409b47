"""What owners publish of their runs, for the time when a partition has none."""
