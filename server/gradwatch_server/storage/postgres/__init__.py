"""PostgreSQL: the ledger of a cluster: alert events, saved state, curves, all fenced by an epoch."""
