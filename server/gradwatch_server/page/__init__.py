"""The page at `/`: static files, and the routes that serve them."""
