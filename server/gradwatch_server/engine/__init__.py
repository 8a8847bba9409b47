"""The one thread that owns the state and the store, and what it publishes."""
