"""The engines of the partitions that a node owns."""
