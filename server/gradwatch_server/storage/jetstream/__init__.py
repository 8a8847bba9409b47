"""NATS JetStream: the replicated log of a cluster."""
