"""Several nodes over one replicated log and one ledger, simulated: `scripts/simulate --cluster`.

What runs is the real engine of each partition, the real log, the real rule of ownership and the
real sessions of workers. What is simulated is what surrounds them: NATS, the ledger, the network
between nodes, the clocks, and which node is killed, paused or cut off when.
"""
