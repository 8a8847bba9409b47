"""A node of a cluster: a router in front of the partitions that it owns, each one an aggregator."""
