"""The judge: from the numbers of a frame to alerts."""
