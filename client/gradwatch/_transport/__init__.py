"""The background thread, its socket, and the records that wait for an acknowledgement."""
