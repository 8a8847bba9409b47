"""What goes between clients, nodes and owners."""
