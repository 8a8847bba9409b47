"""The HTTP of a node: what it answers itself, and what it passes on."""
