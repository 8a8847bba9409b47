"""Rules, what they say of a frame, and the life of an alert."""
