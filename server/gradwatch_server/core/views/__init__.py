"""What readers see of a run: immutable, plain data, made from the state."""
