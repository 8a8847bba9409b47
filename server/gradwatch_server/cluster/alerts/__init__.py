"""What is of all alerts of a cluster, whichever node has their runs."""
