"""Views of runs: immutable, plain data, made from the state."""
