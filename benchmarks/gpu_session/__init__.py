"""The first minutes on a GPU: eleven stages, one table and one JSON file."""
