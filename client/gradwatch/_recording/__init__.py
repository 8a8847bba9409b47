"""From the gradients as they are to a record that waits for the device: the recorder's parts."""
