"""Faults of a cluster under real trainings: what is lost or doubled, and how long nothing comes."""
