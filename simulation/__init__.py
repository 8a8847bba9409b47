"""A cluster in one process and one thread, driven from a seed: `scripts/simulate --seeds 300`.

What runs is the real client protocol with its ring, the real engine with its ledger and its fold,
and the real log over a database in memory. What is simulated is what surrounds them: the network,
the disk's faults, the clock, and who dies when. The same seed gives the same run to the last byte.
"""
