"""`scripts/bench cluster-load`: what a cluster's nodes, NATS and PostgreSQL do for a record."""
