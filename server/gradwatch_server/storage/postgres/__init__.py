"""PostgreSQL: the ledger of a cluster: alert events, saved state, curves, fenced by an epoch."""
