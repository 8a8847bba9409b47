"""NATS in calls that wait, for any thread; the one package that knows its library."""
