"""Whether a node reaches the others and the leaders of streams, and what it does if it does not."""
