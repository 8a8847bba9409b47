"""NATS: what of it is used, in calls that wait, for any thread; the one place that knows its library."""
