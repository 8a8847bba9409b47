"""From the gradients of a moment to the record that is sent."""
