"""A cluster in one process and one thread, driven from a seed: `scripts/simulate --seeds 300`.

What runs is the real session with its send buffer and its driver, the real engine with its state,
and the real log over a database in memory. What is simulated is what surrounds them: the network,
the disk's faults, the clock, and who dies when. The same seed gives the same run to the last byte.
"""
