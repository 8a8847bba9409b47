"""Frames: one step from all ranks, put together; and the window of the last ones."""
