"""What stands before the routes: host names and origins, tokens, sizes, limits of streams."""
