"""Checks before the routes: host names and origins, tokens, sizes, limits of streams."""
