"""The aggregator: `core` decides, without I/O and without a clock; `shell` does everything else."""
