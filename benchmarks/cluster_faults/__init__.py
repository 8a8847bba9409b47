"""Faults of a cluster, one after the other, under real trainings: what is lost, and for how long."""
