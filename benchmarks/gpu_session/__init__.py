"""The first minutes on a GPU: ten stages, one table and one JSON file."""
