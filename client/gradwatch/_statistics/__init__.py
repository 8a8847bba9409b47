"""The numbers: one function over many tensors, on any device."""
