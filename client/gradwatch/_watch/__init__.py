"""`attach`, and what runs in the training loop."""
